"""Static members: they keep their place when they close, and nobody else may have it meanwhile."""

import asyncio
import logging

import pytest
from broker import NEW_PROTOCOL, QUICK_GROUP, append, committed

from quiesce.errors import CommitRefused, QuiesceError, Unavailable
from quiesce.inbox.record import Record, TopicPartition
from quiesce.kafka import KafkaSource
from quiesce.testing.contracts.source import handle, hold, numbered, offsets, values, within
from quiesce_pytest import MakeTopic

BOUND = 30.0

STATIC: dict[str, object] = {"group.instance.id": "orders-1"}


async def fetch_until_told(source: KafkaSource) -> None:
    async with asyncio.timeout(BOUND):
        while True:
            assert not await source.fetch(10)


async def test_K20_who_is_fenced_by_a_member_of_its_name_ends_for_good(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=1)
    await asyncio.to_thread(append, kafka, name, numbered(10))
    first = await KafkaSource(kafka, name, group=group, settings=STATIC | QUICK_GROUP).open()
    held, number = await hold(first, 10)
    second = await KafkaSource(kafka, name, group=group, settings=STATIC | QUICK_GROUP).open()
    assert values(await handle(second, 10), 0) == numbered(10)
    for _ in range(2):
        with pytest.raises(QuiesceError, match="fenced") as ended:
            await fetch_until_told(first)
        assert not ended.value.retryable, "the end was taken for something that passes"
    assert first.partitions == frozenset()
    with pytest.raises(CommitRefused):
        await first.commit(offsets(held), number, within(BOUND))
    await asyncio.to_thread(append, kafka, name, numbered(5, 10))
    assert values(await handle(second, 5), 0) == numbered(5, 10)
    for source in (first, second):
        assert not (await source.close(within(BOUND))).forced


async def test_K20_a_place_that_is_held_is_waited_for_and_that_is_told(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    """With the protocol `consumer` a second one of the name is refused, and its client is at its end."""
    name = topic(partitions=1)
    await asyncio.to_thread(append, kafka, name, numbered(10))
    first = await KafkaSource(kafka, name, group=group, settings=STATIC | NEW_PROTOCOL).open()
    await handle(first, 10)
    second = await KafkaSource(kafka, name, group=group, settings=STATIC | NEW_PROTOCOL).open()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"group\.instance\.id"):
            await fetch_until_told(second)
    assert first.partitions == {TopicPartition(name, 0)}, "the waiting one threw out the holder"
    await asyncio.to_thread(append, kafka, name, numbered(5, 10))
    assert values(await handle(first, 5), 0) == numbered(5, 10)
    await first.close(within(BOUND))
    await asyncio.to_thread(append, kafka, name, numbered(5, 15))
    got: list[Record] = []
    async with asyncio.timeout(BOUND):
        while len(got) < 5:
            try:
                batch = await second.fetch(10)
            except Unavailable:
                continue
            got += batch.records
            await second.commit(offsets(batch.records), batch.assignment, within(BOUND))
    assert values(got, 0) == numbered(5, 15)
    assert not (await second.close(within(BOUND))).forced


async def test_K20_who_waits_for_its_place_can_be_closed(kafka: str, topic: MakeTopic, group: str) -> None:
    name = topic(partitions=1)
    first = await KafkaSource(kafka, name, group=group, settings=STATIC | NEW_PROTOCOL).open()
    async with asyncio.timeout(BOUND):
        while not first.partitions:
            await first.fetch(1)
    second = await KafkaSource(kafka, name, group=group, settings=STATIC | NEW_PROTOCOL).open()
    with pytest.raises(Unavailable):
        await fetch_until_told(second)
    assert not (await second.close(within(BOUND))).forced
    await first.close(within(BOUND))


async def test_a_static_member_keeps_its_partitions_when_it_closes_and_says_for_how_long(
    kafka: str, topic: MakeTopic, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic(partitions=2)
    others = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
    first = await KafkaSource(kafka, name, group=group, settings=STATIC | QUICK_GROUP).open()
    async with asyncio.timeout(BOUND):
        while not (len(first.partitions) == len(others.partitions) == 1):
            await others.fetch(1)
            await first.fetch(1)
    (kept,) = first.partitions
    others.news("others")
    with caplog.at_level(logging.INFO, "quiesce.kafka"):
        await first.close(within(BOUND))
    assert "static member 'orders-1' keeps its partitions" in caplog.text
    assert "6 s" in caplog.text
    await asyncio.to_thread(append, kafka, name, numbered(5), kept.partition)
    again = await KafkaSource(kafka, name, group=group, settings=STATIC | QUICK_GROUP).open()
    assert offsets(await handle(again, 5)) == {kept: 5}
    assert others.news("others") == [], "the group was disturbed"
    assert (await asyncio.to_thread(committed, kafka, group, name, 2))[kept] == 5
    await again.close(within(BOUND))
    await others.close(within(BOUND))
