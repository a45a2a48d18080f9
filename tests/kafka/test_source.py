"""What the source promises beyond its contract, on Apache Kafka."""

import asyncio
import contextlib
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Sequence

import pytest
from broker import QUICK_GROUP, append, committed
from foreign_producer import produce_with_header

from quiesce.errors import CommitRefused, SettingsError, Unavailable
from quiesce.inbox.record import Record, TopicPartition
from quiesce.kafka import KafkaSource, member
from quiesce.kafka.records import HEADERS_LOST
from quiesce.testing.contracts.source import handle, hold, next_batch, numbered, offsets, values, within
from quiesce.testing.kafka import LocalKafka
from quiesce_pytest import MakeTopic

ON_EDGE = {
    "session.timeout.ms": 2000,
    "heartbeat.interval.ms": 100,
    "max.poll.interval.ms": 2200,
}
"""A member that does not poll for 2.2 s is thrown out."""

WARM = 100


async def fetch_until_told(source: KafkaSource, bound: float = 15) -> None:
    async with asyncio.timeout(bound):
        while True:
            await source.fetch(10)


async def test_no_broker_is_told_within_its_bound_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "_PROBE", 1.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        source = KafkaSource(address, "t", group="g")
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await source.open()
        assert 1 <= time.monotonic() - began < 3
        assert source.partitions == frozenset()
        assert not (await source.close(within(1))).forced


async def test_K18_a_handler_slower_than_the_poll_interval_is_not_thrown_out(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=1)
    source = await KafkaSource(kafka, name, group=group, max_poll_records=10, revoke_bound=1.0, settings=ON_EDGE).open()
    await asyncio.to_thread(append, kafka, name, numbered(100))
    batch = await next_batch(source, 10)
    # Records wait behind it, so the partition is paused, and is polled all the same.
    await asyncio.sleep(2 * ON_EDGE["max.poll.interval.ms"] / 1000)
    assert 0 < source.read_ahead <= 11, "back-pressure does not reach the client"
    await source.commit(offsets(batch.records), batch.assignment, within(5))
    source.done(batch.assignment)
    rest = await handle(source, 100 - len(batch.records), limit=10)
    assert values([*batch.records, *rest], 0) == numbered(100), "the pause lost or doubled something"
    assert batch.assignment == (await source.fetch(1)).assignment, "it was thrown out and came back"
    await source.close(within(5))


async def test_K18_nobody_fetching_costs_no_membership_and_holds_up_no_replacement(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    """Back-off and drain: no fetch for longer than an interval, and the revoke is answered all the same."""
    name = topic(partitions=2)
    source = await KafkaSource(kafka, name, group=group, revoke_bound=1.0, settings=ON_EDGE).open()
    await asyncio.to_thread(append, kafka, name, numbered(5))
    await handle(source, 5)
    number = (await source.fetch(1)).assignment
    await asyncio.sleep(1.5 * ON_EDGE["max.poll.interval.ms"] / 1000)
    assert len(source.partitions) == 2
    assert all(source.ours(number, partition) for partition in source.partitions), "it was thrown out and came back"
    replacement = await KafkaSource(kafka, name, group=group, revoke_bound=1.0, settings=ON_EDGE).open()
    async with asyncio.timeout(15):
        while not (len(replacement.partitions) == len(source.partitions) == 1):
            await replacement.fetch(1)
    (kept,) = source.partitions
    assert source.ours(number, kept)
    await source.close(within(5))
    await replacement.close(within(5))


async def test_a_session_that_the_broker_refuses_is_a_wrong_setting(kafka: str, topic: MakeTopic, group: str) -> None:
    short = {"session.timeout.ms": 100, "heartbeat.interval.ms": 30}
    source = await KafkaSource(kafka, topic(), group=group, settings=short).open()
    with pytest.raises(SettingsError, match=r"session\.timeout\.ms"):
        await fetch_until_told(source)
    await source.close(within(5))


async def test_nothing_is_lost_while_members_come_and_go(kafka: str, topic: MakeTopic, group: str) -> None:
    """Three members that are stopped and started over one another while records keep coming."""
    name = topic(partitions=4)
    handled: defaultdict[TopicPartition, list[int]] = defaultdict(list)
    late: list[str] = []
    closes: list[float] = []

    async def member(lives: int, life: float) -> None:
        for _ in range(lives):
            source = await KafkaSource(kafka, name, group=group, max_poll_records=20, settings=QUICK_GROUP).open()
            end = time.monotonic() + life
            while time.monotonic() < end:
                batch = await source.fetch(20)
                if batch:
                    await asyncio.sleep(0.005)
                    await finish(source, batch.records, batch.assignment)
            began = time.monotonic()
            assert not (await source.close(within(10))).forced
            closes.append(time.monotonic() - began)

    async def finish(source: KafkaSource, records: Sequence[Record], number: int) -> None:
        for record in records:
            handled[record.source].append(record.offset)
        try:
            await source.commit(offsets(records), number, within(10))
        except CommitRefused as refused:
            late.append(str(refused))
        source.done(number)

    async def write() -> None:
        for page in range(40):
            for partition in range(4):
                await asyncio.to_thread(append, kafka, name, numbered(10, page * 10), partition)
            await asyncio.sleep(0.05)

    async with asyncio.timeout(45):
        await asyncio.gather(write(), member(3, 1.1), member(3, 1.3), member(2, 1.7))
        last = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
        while set(await asyncio.to_thread(positions, kafka, group, name)) != {400}:
            batch = await last.fetch(500)
            if batch:
                await finish(last, batch.records, batch.assignment)
        await last.close(within(10))
    for partition in range(4):
        seen = handled[TopicPartition(name, partition)]
        assert sorted(set(seen)) == list(range(400)), "a record was passed over"
    assert max(closes) < 10


def positions(kafka: str, group: str, topic: str) -> list[int]:
    found = committed(kafka, group, topic, 4)
    return [found.get(TopicPartition(topic, number), 0) for number in range(4)]


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka to pause")
async def test_a_frozen_broker_holds_nobody(
    paused_kafka: LocalKafka, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = paused_kafka
    broker.create_topic(group, 1)
    source = await KafkaSource(broker.bootstrap, group, group=group, settings=QUICK_GROUP).open()
    await asyncio.to_thread(append, broker.bootstrap, group, numbered(20))
    held, number = await hold(source, 20)
    broker.pause()
    began = time.monotonic()
    with pytest.raises(Unavailable):
        await source.commit(offsets(held), number, within(0.5))
    assert time.monotonic() - began < 1
    # Fetching goes on to come back, with nothing.
    assert not await source.fetch(10)
    broker.resume()
    # What was not answered is offered again, by whoever handles the records.
    await source.commit(offsets(held), number, within(15))
    assert await asyncio.to_thread(committed, broker.bootstrap, group, group, 1) == {held[0].source: 20}
    broker.pause()
    with caplog.at_level(logging.INFO):
        began = time.monotonic()
        closed = await source.close(within(0.5))
        assert time.monotonic() - began < 1
    assert closed.forced
    assert closed.detail
    broker.resume()


async def test_K22_headers_that_cannot_be_read_are_named_and_raise_nowhere(
    kafka: str, topic: MakeTopic, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """confluent-kafka raises a SystemError for them, again and again."""
    name = topic(partitions=1)
    # The interpreter has to have seen the call often: then it no longer looks whether it went well.
    await asyncio.to_thread(append, kafka, name, [b"warm"] * WARM)
    await asyncio.to_thread(produce_with_header, kafka, name, b"first", b"\xff\xfe", b"x")
    await asyncio.to_thread(append, kafka, name, [b"second"])
    source = await KafkaSource(kafka, name, group=group, settings=QUICK_GROUP).open()
    *warm, first, second = await handle(source, WARM + 2)
    assert [record.headers for record in warm] == [()] * WARM
    assert (first.value, second.value) == (b"first", b"second")
    assert first.event_id is None
    assert [header for header, _ in first.headers] == [HEADERS_LOST]
    assert second.headers == ()
    assert f"{name}[0]@{WARM}: its headers cannot be read" in caplog.text
    await source.close(within(5))


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka to pause")
async def test_a_broker_that_answers_nothing_is_told_though_nothing_is_in_hand(
    paused_kafka: LocalKafka, group: str
) -> None:
    """Its connections stay open, so the client itself has nothing to tell for a minute."""
    broker = paused_kafka
    broker.create_topic(group, 1)
    source = await KafkaSource(broker.bootstrap, group, group=group).open()
    await asyncio.to_thread(append, broker.bootstrap, group, numbered(5))
    await handle(source, 5)
    broker.pause()
    with pytest.raises(Unavailable, match="no Kafka broker answers"):
        await fetch_until_told(source, 40)
    for _ in range(2):
        with pytest.raises(Unavailable, match="no Kafka broker answers"):
            await source.fetch(10)
    broker.resume()
    await asyncio.to_thread(append, broker.bootstrap, group, numbered(5, 5))
    found: list[Record] = []
    async with asyncio.timeout(40):
        while len(found) < 5:
            with contextlib.suppress(Unavailable):
                found += (await source.fetch(10)).records
    assert values(found, 0) == numbered(5, 5)
    await source.close(within(5))
