"""What is done behind the group's offset, on Apache Kafka: who believes it, and what becomes of it."""

import asyncio
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from broker import NEW_PROTOCOL, QUICK_GROUP, append, delete_before
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.inbox.beyond import Beyond
from quiesce.inbox.record import TopicPartition
from quiesce.kafka import KafkaSource
from quiesce.kafka.beyond_text import Where, read, written
from quiesce.testing.contracts.source import hold, numbered, within
from quiesce.testing.kafka import LocalKafka
from quiesce_pytest import MakeTopic

BOUND = 30.0


def commit_by_hand(kafka: str, group: str, topic: str, offset: int, text: str) -> None:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": group})
    try:
        consumer.commit(offsets=[KafkaPartition(topic, 0, offset, text)], asynchronous=False)
    finally:
        consumer.close()


def kept(kafka: str, group: str, topic: str) -> tuple[int, str]:
    """The group's offset, and the text beside it."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": group})
    try:
        (one,) = consumer.committed([KafkaPartition(topic, 0)], timeout=BOUND)
    finally:
        consumer.close()
    return one.offset, one.metadata or ""


def append_by_another(kafka: str, topic: str, values: Sequence[bytes]) -> None:
    """By a producer that knows nothing of what was there."""
    producer = Producer({"bootstrap.servers": kafka})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(BOUND) == 0


def cluster_of(kafka: str) -> str:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "asks"})
    try:
        return consumer.cluster_id(timeout=BOUND)
    finally:
        consumer.close()


TEN = Beyond.all_but(2, 10, [2, 5])


@pytest.mark.parametrize(
    ("text", "believed"),
    [
        (lambda here: written(TEN, here, 0), True),
        # As from before an election in which a broker that lacked records became the leader: others have their numbers.
        (lambda here: written(TEN, here, None), False),
        # As a tool writes that copies a group's offsets.
        (lambda here: written(TEN, replace(here, cluster="another"), 0), False),
        (lambda here: written(TEN, replace(here, group="another"), 0), False),
        (lambda here: written(TEN.seen_from(3), here, 0), False),
        # As of a topic of the same name that was deleted.
        (lambda here: written(replace(TEN, held=4711), here, 0), False),
        (lambda here: "deployed by carol", False),
    ],
    ids=[
        "its own",
        "an older epoch",
        "another cluster",
        "another group",
        "another offset",
        "another topic of its name",
        "a note",
    ],
)
async def test_a_text_beside_the_offset_is_believed_only_where_it_is_about_these_very_records(
    kafka: str, topic: MakeTopic, group: str, text: Callable[[Where], str], believed: bool
) -> None:
    name = topic(partitions=1)
    await asyncio.to_thread(append, kafka, name, numbered(12))
    note = text(Where(await asyncio.to_thread(cluster_of, kafka), group, name, 0))
    await asyncio.to_thread(commit_by_hand, kafka, group, name, 2, note)
    source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
    wanted = [2, 5, 10, 11] if believed else list(range(2, 12))
    held, number = await hold(source, len(wanted))
    assert [record.offset for record in held] == wanted
    # However it began, what is done in the end is committed.
    await source.commit({held[0].source: 12}, number, within(BOUND))
    source.done(number)
    await source.close(within(BOUND))
    assert await asyncio.to_thread(kept, kafka, group, name) == (12, "")


async def test_what_is_done_stays_so_when_retention_takes_the_record_in_front_of_it(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=1)
    await asyncio.to_thread(append, kafka, name, numbered(20))
    source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
    held, number = await hold(source, 20)
    here = held[0].source
    await source.commit({here: 2}, number, within(BOUND), beyond={here: Beyond.all_but(2, 15, [2, 3])})
    await source.close(within(BOUND))
    await asyncio.to_thread(delete_before, kafka, name, 5)
    source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
    held, number = await hold(source, 5)
    assert [record.offset for record in held] == [15, 16, 17, 18, 19]
    await source.close(within(BOUND))


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka with short notes")
async def test_records_that_took_the_numbers_of_lost_ones_are_delivered_and_no_commit_passes_over_them(
    own_kafka: Callable[..., LocalKafka], group: str, tmp_path: Path
) -> None:
    """As after an unclean election: the log ends earlier than it did, and goes on with others."""
    broker, name = own_kafka(), "t"
    here = TopicPartition(name, 0)
    kafka = broker.bootstrap
    broker.create_topic(name, partitions=1)
    await asyncio.to_thread(append, kafka, name, numbered(10))
    await asyncio.to_thread(broker.stop)
    assert broker.directory is not None
    log = broker.directory / "data" / f"{name}-0"
    shutil.copytree(log, tmp_path / "shorter")
    await asyncio.to_thread(broker.start)
    await asyncio.to_thread(append, kafka, name, numbered(10, 10))
    source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
    _, number = await hold(source, 20)
    await source.commit({here: 5}, number, within(BOUND), beyond={here: Beyond.all_but(5, 20, [5])})
    await source.close(within(BOUND))
    await asyncio.to_thread(broker.stop)
    shutil.rmtree(log)
    shutil.copytree(tmp_path / "shorter", log)
    await asyncio.to_thread(broker.start)
    source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
    held, number = await hold(source, 1)
    assert [record.offset for record in held] == [5]
    # Nobody has seen yet what comes behind.
    await source.commit({here: 6}, number, within(BOUND))
    assert (await asyncio.to_thread(kept, kafka, group, name))[0] == 10
    await asyncio.to_thread(append_by_another, kafka, name, numbered(10, 100))
    held, number = await hold(source, 10)
    assert [record.value for record in held] == numbered(10, 100)
    await source.commit({here: 10}, number, within(BOUND), beyond={here: Beyond.all_but(10, 12, [10])})
    await source.close(within(BOUND))
    source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
    held, number = await hold(source, 9)
    assert [record.offset for record in held] == [10, *range(12, 20)]
    await source.close(within(BOUND))


async def test_it_goes_over_to_the_next_owner_in_the_new_protocol_too_beside_records_that_come_meanwhile(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=1)
    await asyncio.to_thread(append, kafka, name, numbered(10))
    first = await KafkaSource(kafka, name, group=group, settings=NEW_PROTOCOL).open()
    held, number = await hold(first, 10)
    await first.commit(
        {held[0].source: 0}, number, within(BOUND), beyond={held[0].source: Beyond.all_but(0, 9, [0, 4])}
    )
    await first.close(within(BOUND))
    await asyncio.to_thread(append, kafka, name, numbered(5, 10))
    second = await KafkaSource(kafka, name, group=group, settings=NEW_PROTOCOL).open()
    held, number = await hold(second, 8)
    assert [record.offset for record in held] == [0, 4, 9, 10, 11, 12, 13, 14]
    await second.close(within(BOUND))


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka with short notes")
async def test_a_leader_that_changes_unsettles_nothing_and_a_broker_that_keeps_little_text_costs_a_warning(
    group: str, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalKafka(properties={"offset.metadata.max.bytes": "100"}) as broker:
        kafka, name = broker.bootstrap, "t"
        broker.create_topic(name, partitions=1)
        here = TopicPartition(name, 0)
        await asyncio.to_thread(append, kafka, name, numbered(10))
        source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
        _, number = await hold(source, 10)
        await source.commit({here: 2}, number, within(BOUND), beyond={here: TEN})
        await source.close(within(BOUND))
        # Each restart is an election.
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(append, kafka, name, numbered(1990, 10))
        source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
        held, number = await hold(source, 1992)
        assert [record.offset for record in held] == [2, 5, *range(10, 2000)]
        await source.commit({here: 5}, number, within(BOUND), beyond={here: Beyond.all_but(5, 12, [5, 10])})
        offset, text = await asyncio.to_thread(kept, kafka, group, name)
        found = read(text, offset, Where(await asyncio.to_thread(cluster_of, kafka), group, name, 0))
        assert found is not None
        assert found[0] == Beyond.all_but(5, 12, [5, 10])
        assert (found[1] or 0) > 0, "the epoch is that of before"
        chance = random.Random(3)
        many = Beyond.all_but(5, 1999, [5, 6, *(n for n in range(7, 1999) if chance.random() < 0.5)])
        assert "offset.metadata.max.bytes" not in caplog.text
        await source.commit({here: 5}, number, within(BOUND), beyond={here: many})
        assert caplog.text.count("offset.metadata.max.bytes") == 1
        await source.commit({here: 6}, number, within(BOUND), beyond={here: many.seen_from(6)})
        offset, text = await asyncio.to_thread(kept, kafka, group, name)
        assert offset >= 6
        assert len(text) <= 100
        await source.close(within(BOUND))
        assert caplog.text.count("offset.metadata.max.bytes") == 1
