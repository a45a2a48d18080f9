"""Where a source begins to read, and that the group gets to the end, on Apache Kafka."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

import pytest
from broker import QUICK_GROUP, append, committed, delete_before
from confluent_kafka import KafkaError, Producer
from mock_cluster import OFFSET_FETCH, MockCluster

from quiesce.errors import QuiesceError, Unavailable
from quiesce.inbox.events import PositionReset
from quiesce.inbox.record import Record, TopicPartition
from quiesce.kafka import KafkaSource
from quiesce.testing.contracts.source import handle, hold, next_batch, numbered, offsets, values, within
from quiesce_pytest import MakeTopic

BOUND = 30.0

MOCK_GROUP = QUICK_GROUP | {"session.timeout.ms": 1500}
"""The mock brokers let a member wait a session long for one that has left."""


def resets(source: KafkaSource) -> list[PositionReset]:
    return [event for event in source.news("orders") if isinstance(event, PositionReset)]


async def handled_by_one(kafka: str, topic: str, group: str, count: int) -> None:
    source = await KafkaSource(kafka, topic, group=group, settings=QUICK_GROUP).open()
    await handle(source, count)
    await source.close(within(BOUND))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_K14_a_group_without_an_offset_begins_at_the_earliest_and_says_so(
    kafka: str, topic: MakeTopic, group: str, protocol: str
) -> None:
    name = topic(partitions=1)
    await asyncio.to_thread(append, kafka, name, numbered(10))
    await asyncio.to_thread(delete_before, kafka, name, 4)
    source = await KafkaSource(kafka, name, group=group, settings={"group.protocol": protocol}).open()
    assert values(await handle(source, 6), 0) == numbered(6, 4)
    assert resets(source) == [PositionReset("orders", name, 0, None, 4)]
    assert resets(source) == []
    await source.close(within(BOUND))


async def test_K14_latest_is_a_choice_and_is_told_too(kafka: str, topic: MakeTopic, group: str) -> None:
    name = topic(partitions=1)
    await asyncio.to_thread(append, kafka, name, numbered(10))
    settings = QUICK_GROUP | {"auto.offset.reset": "latest"}
    source = await KafkaSource(kafka, name, group=group, settings=settings).open()
    async with asyncio.timeout(BOUND):
        while not source.partitions:
            await source.fetch(1)
    await asyncio.to_thread(append, kafka, name, numbered(5, 10))
    assert values(await handle(source, 5), 0) == numbered(5, 10)
    assert resets(source) == [PositionReset("orders", name, 0, None, 10)]
    await source.close(within(BOUND))


async def test_a_jump_in_one_partition_leaves_another_of_which_nothing_was_read_where_it_begins(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=2)
    await asyncio.to_thread(append, kafka, name, numbered(10))
    await handled_by_one(kafka, name, group, 10)
    await asyncio.to_thread(append, kafka, name, numbered(20, 10))
    await asyncio.to_thread(delete_before, kafka, name, 15)
    # An eager strategy: all is assigned anew.
    eager = QUICK_GROUP | {"partition.assignment.strategy": "range"}
    source = await KafkaSource(kafka, name, group=group, settings=eager).open()
    assert values(await handle(source, 15), 0) == numbered(15, 15)
    await asyncio.to_thread(append, kafka, name, numbered(5, 1000), 1)
    assert values(await handle(source, 5), 1) == numbered(5, 1000)
    await source.close(within(BOUND))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_K14_an_offset_older_than_the_log_is_told_with_from_and_to(
    kafka: str, topic: MakeTopic, group: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(partitions=1)
    await asyncio.to_thread(append, kafka, name, numbered(10))
    await handled_by_one(kafka, name, group, 10)
    await asyncio.to_thread(append, kafka, name, numbered(20, 10))
    await asyncio.to_thread(delete_before, kafka, name, 15)
    source = await KafkaSource(kafka, name, group=group, settings={"group.protocol": protocol}).open()
    with caplog.at_level(logging.WARNING, "quiesce.kafka"):
        assert values(await handle(source, 15), 0) == numbered(15, 15)
    assert resets(source) == [PositionReset("orders", name, 0, 10, 15)]
    assert f"{name}[0]: offset 10 is not on the broker, reading goes on at 15" in caplog.text
    assert await asyncio.to_thread(committed, kafka, group, name, 1) == {TopicPartition(name, 0): 30}
    await source.close(within(BOUND))


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
async def test_K14_records_deleted_in_front_of_a_slow_reader_are_told_as_well(
    kafka: str, topic: MakeTopic, group: str, strategy: str
) -> None:
    """In the middle of its work, and its other partition goes on."""
    name = topic(partitions=2)
    settings = QUICK_GROUP | {"partition.assignment.strategy": strategy}
    source = await KafkaSource(kafka, name, group=group, max_poll_records=5, settings=settings).open()
    slow = TopicPartition(name, 0)
    await asyncio.to_thread(append, kafka, name, numbered(100))
    await asyncio.to_thread(append, kafka, name, numbered(10), 1)
    begun = await handle(source, 10, limit=5)
    # Now the partition is paused with what is read ahead, and retention passes it.
    async with asyncio.timeout(BOUND):
        while slow not in source._member._pauses.laid:  # type: ignore[union-attr]
            batch = await source.fetch(5, full=[slow])
            begun += batch.records
            await source.commit(offsets(batch.records), batch.assignment, within(BOUND))
    await asyncio.to_thread(delete_before, kafka, name, 90)
    resets(source)
    rest = begun
    async with asyncio.timeout(BOUND):
        while values(rest, 0)[-1:] != [b"99"] or values(rest, 1)[-1:] != [b"9"]:
            rest += await handle(source, 1)
    (jump,) = resets(source)
    assert (jump.topic, jump.partition, jump.to_offset) == (name, 0, 90)
    assert jump.from_offset is not None
    assert values(rest, 0) == numbered(jump.from_offset) + numbered(10, 90)
    assert values(rest, 1) == numbered(10)
    await source.close(within(BOUND))


async def test_K14_with_error_the_consumer_ends_and_names_the_partition(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=1)
    settings = QUICK_GROUP | {"auto.offset.reset": "error"}
    source = await KafkaSource(kafka, name, group=group, settings=settings).open()
    with pytest.raises(QuiesceError, match=rf"{name}\[0\].*auto\.offset\.reset=error") as ended:
        await next_batch(source)
    assert not ended.value.retryable
    await source.close(within(BOUND))


@pytest.mark.parametrize("code", [KafkaError.REQUEST_TIMED_OUT, KafkaError.UNKNOWN])
async def test_K14_an_offset_that_could_not_be_asked_for_is_not_none(group: str, code: int) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("t")
        append(cluster.bootstrap, "t", numbered(10))
        first = await KafkaSource(cluster.bootstrap, "t", group=group, settings=MOCK_GROUP).open()
        batch = await next_batch(first, 5)
        await first.commit({batch.records[0].source: 5}, batch.assignment, within(BOUND))
        await first.close(within(BOUND))
        cluster.answer(OFFSET_FETCH, *[code] * 3)
        latest = MOCK_GROUP | {"auto.offset.reset": "latest"}
        second = await KafkaSource(cluster.bootstrap, "t", group=group, settings=latest).open()
        got: list[Record] = []
        async with asyncio.timeout(BOUND):
            while not got:
                # It may be told, as something that passes.
                with contextlib.suppress(Unavailable):
                    got += (await second.fetch(10)).records
        assert got[0].offset == 5, "an error was taken for 'no offset'"
        assert resets(second) == []
        await second.close(within(BOUND))


def in_transactions(kafka: str, topic: str, ends: Sequence[tuple[int, Callable[[Producer], None]]]) -> None:
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic})
    producer.init_transactions(BOUND)
    for count, end in ends:
        producer.begin_transaction()
        for value in numbered(count):
            producer.produce(topic, value, partition=0)
        assert producer.flush(BOUND) == 0
        end(producer)


async def test_K3_the_group_gets_to_the_end_of_a_topic_with_transactions(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    """Behind the last record stands a marker that nobody is handed."""
    name = topic(partitions=1)
    source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
    await asyncio.to_thread(in_transactions, kafka, name, [(5, Producer.commit_transaction)])
    handled = await handle(source, 5)
    assert offsets(handled) == {handled[0].source: 5}
    await committed_is(kafka, group, name, 6)
    # Of this nobody is handed anything.
    await asyncio.to_thread(in_transactions, kafka, name, [(3, Producer.abort_transaction)])
    await committed_is(kafka, group, name, 10)
    assert not await source.fetch(10)
    # In front of something unfinished nothing is committed, whatever stands behind it.
    await asyncio.to_thread(in_transactions, kafka, name, [(2, Producer.commit_transaction)])
    (first, _), number = await hold(source, 2)
    await source.commit(offsets([first]), number, within(BOUND))
    assert not await source.fetch(10)
    await committed_is(kafka, group, name, 11)
    await source.close(within(BOUND))
    assert await asyncio.to_thread(committed, kafka, group, name, 1) == {first.source: 11}


async def committed_is(kafka: str, group: str, topic: str, offset: int) -> None:
    async with asyncio.timeout(BOUND):
        while await asyncio.to_thread(committed, kafka, group, topic, 1) != {TopicPartition(topic, 0): offset}:
            await asyncio.sleep(0.05)
