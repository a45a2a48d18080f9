"""The consumer on Apache Kafka, in this process: rebalances, slow handlers, and a broker that goes and comes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from broker import QUICK_GROUP, append, committed
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quiesce.inbox.events import AssignmentChanged, CommitLate
from quiesce.inbox.record import Record, TopicPartition
from quiesce.kafka import KafkaSource
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.testing.contracts.source import numbered
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.manual_stop import ManualStop
from quiesce.workers import Consumer, batches
from quiesce_pytest import MakeTopic

ON_EDGE = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 100, "max.poll.interval.ms": 2200}
"""A member that does not poll for 2.2 s is thrown out; and so is one of a machine that stands still for 2 s."""


async def until(condition: Callable[[], bool], within: float = 30.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def consuming(consumer: Consumer) -> AsyncIterator[ManualStop]:
    """The consumer at work; stopped at the end, within a generous bound."""
    await consumer.source.open()
    stop = ManualStop(consumer.name)
    task = asyncio.create_task(consumer.run(stop))
    try:
        yield stop
    finally:
        stop.now(within=20.0)
        done, _ = await asyncio.wait({task}, timeout=30.0)
        if not done:
            task.cancel()
            await asyncio.wait({task}, timeout=5.0)
        await consumer.source.close(Deadline(asyncio.get_running_loop().time() + 5.0))
    assert done, "it did not stop within its bound"
    await task


def place(record: Record) -> tuple[int, int]:
    return record.partition, record.offset


async def test_a_topic_that_is_made_anew_under_a_consumer_is_handled_from_its_beginning(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=1)
    seen: list[bytes | None] = []

    async def handle(record: Record) -> None:
        seen.append(record.value)

    admin = AdminClient({"bootstrap.servers": kafka})
    async with consuming(Consumer(KafkaSource(kafka, name, group=group, settings=QUICK_GROUP), handle)):
        await asyncio.to_thread(append, kafka, name, numbered(100))
        await until(lambda: len(seen) == 100)
        await asyncio.to_thread(admin.delete_topics([name])[name].result, 15)
        await until(lambda: name not in admin.list_topics(timeout=15).topics)
        await asyncio.to_thread(admin.create_topics([NewTopic(name, 1)])[name].result, 15)
        await asyncio.to_thread(append, kafka, name, numbered(20, 1000))
        await until(lambda: len(seen) >= 120)
        assert seen[100:] == numbered(20, 1000)
    assert committed(kafka, group, name, 1) == {TopicPartition(name, 0): 20}


async def test_a_rebalance_in_the_middle_of_slow_batches_waits_for_them_and_nothing_is_handled_twice(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=4)
    seen: Counter[tuple[int, int]] = Counter()
    in_hand = asyncio.Event()
    joined = asyncio.Event()

    def member(number: int) -> Consumer:
        async def handle(records: list[Record]) -> None:
            in_hand.set()
            if number == 1 and not joined.is_set():
                # Until the other one is in: the rebalance comes in the middle.
                await joined.wait()
                await asyncio.sleep(1.0)
            await asyncio.sleep(0.05)
            seen.update(place(one) for one in records)

        source = KafkaSource(kafka, name, group=group, settings=QUICK_GROUP, name=f"member {number}")
        return Consumer(source, batches(handle), batch=20)

    async with consuming(member(1)) as first:
        for partition in range(4):
            await asyncio.to_thread(append, kafka, name, numbered(50), partition)
        await until(in_hand.is_set)
        async with consuming(member(2)) as second:
            joined.set()
            await until(lambda: len(seen) == 200)
            await until(lambda: bool(second.told(AssignmentChanged, lambda told: told.partitions == 2)))
            for partition in range(4):
                await asyncio.to_thread(append, kafka, name, numbered(50, 50), partition)
            await until(lambda: len(seen) == 400)
    assert set(seen.values()) == {1}
    assert not first.told(CommitLate)
    assert set((await asyncio.to_thread(committed, kafka, group, name, 4)).values()) == {100}


async def test_K17_K18_slow_handlers_back_off_and_drain_outlast_the_poll_interval_and_the_member_stays(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=1)
    tries: list[int] = []
    began = asyncio.Event()

    async def handle(record: Record) -> None:
        tries.append(record.offset)
        if record.offset == 0:
            await asyncio.sleep(3.0)
        if record.offset == 1 and tries.count(1) == 1:
            raise ValueError("once")
        if record.offset == 2:
            began.set()
            await asyncio.sleep(3.0)

    source = KafkaSource(kafka, name, group=group, revoke_bound=1.0, settings=ON_EDGE)
    waits = Backoff(first=3.0, ceiling=3.0, draw=lambda: 1.0)
    async with consuming(Consumer(source, handle, backoff=waits)) as stop:
        await asyncio.to_thread(append, kafka, name, numbered(4))
        # Stopped in the middle of the third, which takes more than an interval.
        await until(began.is_set)
    assert tries == [0, 1, 1, 2]
    changes = stop.told(AssignmentChanged, lambda told: told.partitions > 0)
    assert len(changes) == 1, "it was thrown out and came back"
    assert not stop.told(AssignmentChanged, lambda told: told.lost)
    assert await asyncio.to_thread(committed, kafka, group, name, 1) == {TopicPartition(name, 0): 3}


async def test_K18_a_rebalance_waits_for_no_back_off(kafka: str, topic: MakeTopic, group: str) -> None:
    name = topic(partitions=2)
    tried = asyncio.Event()
    seen: list[tuple[int, int]] = []

    async def fails(record: Record) -> None:
        tried.set()
        raise ValueError("always")

    async def handle(record: Record) -> None:
        seen.append(place(record))

    def source(number: int) -> KafkaSource:
        return KafkaSource(kafka, name, group=group, settings=QUICK_GROUP, name=f"member {number}")

    for partition in (0, 1):
        await asyncio.to_thread(append, kafka, name, numbered(3), partition)
    for_ever = Backoff(first=3600.0, ceiling=3600.0, draw=lambda: 1.0)
    async with consuming(Consumer(source(1), fails, backoff=for_ever)):
        await until(tried.is_set)
        async with consuming(Consumer(source(2), handle)):
            # Its revoke bound of five seconds, were it waited for, would show in nothing but time: what is asked
            # is that the partition comes at all while the other one holds a record that fails.
            await until(lambda: len(seen) == 3)
    assert len({partition for partition, _ in seen}) == 1


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka to pause")
@pytest.mark.timeout(120)
async def test_a_broker_that_restarts_is_waited_for_and_what_was_handled_is_committed_once_it_is_back(
    paused_kafka: LocalKafka, group: str
) -> None:
    broker = paused_kafka
    broker.create_topic(group, 2)
    seen: Counter[tuple[int, int]] = Counter()
    begun: set[tuple[int, int]] = set()
    go_on = asyncio.Event()

    async def handle(record: Record) -> None:
        begun.add(place(record))
        if record.offset >= 10:
            await go_on.wait()
        seen[place(record)] += 1

    # The session outlasts the broker's absence: else the partitions are lost, and what was handled comes again.
    patient = {**QUICK_GROUP, "session.timeout.ms": 60_000}
    source = KafkaSource(broker.bootstrap, group, group=group, settings=patient)
    async with consuming(Consumer(source, handle, concurrency=100, null_keys="free")) as stop:
        for partition in (0, 1):
            await asyncio.to_thread(append, broker.bootstrap, group, numbered(50), partition)
        await until(lambda: len(begun) == 100)
        await asyncio.to_thread(broker.stop)
        go_on.set()
        # What has begun ends while the broker is away.
        await until(lambda: len(seen) == 100)
        await asyncio.to_thread(broker.start)
        for partition in (0, 1):
            await asyncio.to_thread(append, broker.bootstrap, group, numbered(5, 50), partition)
        await until(lambda: len(seen) == 110, 60.0)
    assert set(seen.values()) == {1}
    assert not stop.abandoned
    assert not stop.told(CommitLate)
    offsets = await asyncio.to_thread(committed, broker.bootstrap, group, group, 2)
    assert set(offsets.values()) == {55}
