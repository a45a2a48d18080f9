"""From a writer's transaction to a handler, on real PostgreSQL and real Kafka."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

import asyncpg
import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.inbox.record import Record
from quiesce.kafka import KafkaPublisher, KafkaSource
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Resource, Stop
from quiesce.outbox import OutboxEvent
from quiesce.outbox.events import ClaimSettled
from quiesce.postgres import OutboxRows, enqueue
from quiesce.relay import Relay
from quiesce.testing.manual_stop import ManualStop
from quiesce.workers import Consumer

pytestmark = pytest.mark.needs("kafka")

EVENTS, KEYS, WRITERS = 2000, 100, 8
BOUND = 40.0


class MakeTopic(Protocol):
    def __call__(self, name_prefix: str = ..., partitions: int = ...) -> str: ...


@asynccontextmanager
async def running(*workers: Relay | Consumer) -> AsyncIterator[list[ManualStop]]:
    """Runs the workers with their resources open, and closes these after the workers ended."""
    stops = [ManualStop(worker.name) for worker in workers]
    async with AsyncExitStack() as stack:
        for worker in workers:
            for resource in worker.resources:
                await resource.open()
                stack.push_async_callback(close, resource)
        async with asyncio.TaskGroup() as group:
            for worker, stop in zip(workers, stops, strict=True):
                group.create_task(worker.run(stop))
            try:
                yield stops
            finally:
                for stop in stops:
                    stop.now(within=10.0)


async def close(resource: Resource[object]) -> None:
    closed = await resource.close(Deadline(time.monotonic() + 5.0))
    assert not closed.undelivered


async def until(condition: Callable[[], object], what: str) -> None:
    """Polls a condition, for what nobody tells."""
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.02)
    assert condition(), what


async def write(dsn: str, topic: str, written: dict[str, str], number: int, nudge: Callable[[], None]) -> None:
    """One writer: each transaction locks its aggregate, takes its next number and enqueues; some roll back."""
    draw = random.Random(number)
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        for _ in range(EVENTS // WRITERS):
            key = f"k{draw.randrange(KEYS)}"
            while True:
                transaction = connection.transaction()
                await transaction.start()
                await connection.execute("SELECT 1 FROM aggregate WHERE key = $1 FOR UPDATE", key)
                count = await connection.fetchval(
                    "UPDATE aggregate SET count = count + 1 WHERE key = $1 RETURNING count", key
                )
                event_id = await enqueue(connection, OutboxEvent(topic, key, "Counted", {"key": key, "count": count}))
                if draw.random() < 0.1:
                    await transaction.rollback()
                    continue
                await transaction.commit()
                break
            written[str(event_id)] = key
            nudge()
    finally:
        await connection.close(timeout=5)


async def prepare(dsn: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        await connection.execute(
            "CREATE TABLE aggregate (key text PRIMARY KEY, count int NOT NULL DEFAULT 0); "
            f"INSERT INTO aggregate SELECT 'k' || n FROM generate_series(0, {KEYS - 1}) AS n"
        )
    finally:
        await connection.close(timeout=5)


async def waiting(dsn: str) -> int:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM outbox_event WHERE dispatched_at IS NULL"))
    finally:
        await connection.close(timeout=5)


def records_on(bootstrap: str, topic: str, partitions: int) -> int:
    """How many records the topic has, by its offsets: nothing transactional is on it, so none is invisible."""
    client = KafkaConsumer({"bootstrap.servers": bootstrap, "group.id": "counts", "log_level": 0})
    try:
        ends = [client.get_watermark_offsets(KafkaPartition(topic, n), timeout=10) for n in range(partitions)]
        return sum(high - low for low, high in ends)
    finally:
        client.close()


async def test_everything_that_was_committed_arrives_once_and_in_order(
    database: str, kafka: str, topic: MakeTopic, group: str
) -> None:
    name = topic("orders", partitions=3)
    await prepare(database)
    written: dict[str, str] = {}
    arrived: list[tuple[str, str, int]] = []

    async def handle(record: Record) -> None:
        assert record.key is not None
        assert record.value is not None
        arrived.append((str(record.event_id), record.key.decode(), int(record.value.rpartition(b":")[2].strip(b"}"))))

    relay = Relay(OutboxRows(database), KafkaPublisher(kafka), batch=100, max_in_flight=300)
    consumer = Consumer(KafkaSource(kafka, name, group=group), handle)
    async with running(relay, consumer) as (relay_stop, consumer_stop):
        async with asyncio.TaskGroup() as writers:
            for number in range(WRITERS):
                writers.create_task(write(database, name, written, number, relay.nudge))
        assert len(written) == EVENTS
        await until(lambda: len(arrived) >= EVENTS, "everything arrives")
    assert Counter(event_id for event_id, _, _ in arrived) == dict.fromkeys(written, 1)
    for key in set(written.values()):
        counts = [count for _, arrived_key, count in arrived if arrived_key == key]
        assert counts == sorted(counts), key
    assert records_on(kafka, name, 3) == EVENTS
    assert await waiting(database) == 0
    assert sum(told.dispatched for told in relay_stop.told(ClaimSettled)) == EVENTS
    assert not relay_stop.abandoned
    assert not consumer_stop.abandoned


async def test_relays_that_follow_one_another_double_nothing(database: str, kafka: str, topic: MakeTopic) -> None:
    name, count = topic("orders", partitions=3), 400
    connection = await asyncpg.connect(database, timeout=10)
    try:
        await connection.execute(
            "INSERT INTO outbox_event (id, topic, aggregate_id, type, payload, headers) "
            "SELECT gen_random_uuid(), $1, 'k' || n % 50, 'Counted', convert_to(n::text, 'UTF8'), '{}' "
            "FROM generate_series(1, $2::int) AS n",
            name,
            count,
        )
    finally:
        await connection.close(timeout=5)
    stopped: list[Stop] = []
    async with asyncio.timeout(BOUND):
        # Each is told to stop in the middle of its work, as a rolling update does, until nothing is left.
        while await waiting(database):
            relay = Relay(OutboxRows(database), KafkaPublisher(kafka), batch=20, max_in_flight=60)
            async with running(relay) as (stop,):
                await until(lambda: stop.told(ClaimSettled), "a claim is settled")
            assert not stop.abandoned
            stopped.append(stop)
    assert len(stopped) > 3, "one relay did it all before it was stopped, so this shows nothing"
    assert records_on(kafka, name, 3) == count
