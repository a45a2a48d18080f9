"""The promises of the outbox over the log store, on real PostgreSQL and real Kafka."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Protocol

import asyncpg
import pytest
from broker import records
from log_relay_service import relay as relay_service

from quiesce.kafka import KafkaPublisher, answering
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Resource
from quiesce.outbox import OutboxEvent
from quiesce.outbox.events import ClaimSettled
from quiesce.postgres import OutboxLog, connect, enqueue, schema
from quiesce.relay import Relay
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.kafka_address import KafkaAddress
from quiesce.testing.manual_stop import ManualStop
from quiesce.testing.postgres import LocalPostgres
from quiesce.testing.service_process import ServiceProcess

pytestmark = pytest.mark.needs("kafka")

KEYS, WRITERS, ROUNDS = 40, 6, 60
EVENTS, IN_FLIGHT = 3000, 300
BOUND = 40.0


class MakeTopic(Protocol):
    def __call__(self, name_prefix: str = ..., partitions: int = ...) -> str: ...


@asynccontextmanager
async def running(*relays: Relay, within: float = 10.0) -> AsyncIterator[list[ManualStop]]:
    """Runs the relays with their resources open; stops them at the end, and closes after that."""
    stops = [ManualStop(relay.name) for relay in relays]
    async with AsyncExitStack() as stack:
        for relay in relays:
            for resource in relay.resources:
                await resource.open()
                stack.push_async_callback(close, resource)
        async with asyncio.TaskGroup() as group:
            for relay, stop in zip(relays, stops, strict=True):
                group.create_task(relay.run(stop))
            try:
                yield stops
            finally:
                for stop in stops:
                    stop.now(within=within)


async def close(resource: Resource[object]) -> None:
    await resource.close(Deadline(time.monotonic() + 2.0))


def relay_over(dsn: str, bootstrap: str, name: str = "relay") -> Relay:
    store = OutboxLog(dsn, claims=4, statement_timeout=2.0, connect_timeout=2.0)
    return Relay(store, KafkaPublisher(bootstrap), name=name, batch=50, max_in_flight=IN_FLIGHT, max_claims=3)


@dataclass
class Written:
    """Ids of committed events by key, in the order in which their transactions committed."""

    by_key: dict[str, list[str]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(map(len, self.by_key.values()))


async def write(dsn: str, topic: str, number: int, written: Written) -> None:
    """Locks its aggregate, takes places, waits, commits or rolls back."""
    draw = Random(number)
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        for _ in range(ROUNDS):
            key = f"k{draw.randrange(KEYS)}"
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", key)
            ids = [
                str(await enqueue(connection, OutboxEvent(topic, key, "Counted", b"{}")))
                for _ in range(draw.choice([1, 1, 2, 5, 120]))
            ]
            await asyncio.sleep(draw.choice([0, 0, 0.002, 0.05]))
            if draw.random() < 0.1:
                await transaction.rollback()
            else:
                # Noted before the lock falls: whoever has it next notes its own after us.
                written.by_key.setdefault(key, []).extend(ids)
                await transaction.commit()
    finally:
        await connection.close(timeout=5)


@asynccontextmanager
async def long_transaction(dsn: str) -> AsyncIterator[None]:
    """One that wrote something elsewhere and stays open."""
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_current_xact_id()")
            yield
    finally:
        await connection.close(timeout=5)


def arrived(bootstrap: str, topic: str) -> dict[str, list[str]]:
    """Ids by key, in the order of the topic."""
    by_key: dict[str, list[str]] = {}
    for record in records(bootstrap, topic):
        assert record.key is not None
        by_key.setdefault(record.key.decode(), []).append(str(record.event_id))
    return by_key


async def dispatched(dsn: str) -> int:
    """What the cursors have counted."""
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return int(await connection.fetchval("SELECT sum(dispatched) FROM outbox_lane"))
    finally:
        await connection.close(timeout=5)


async def fill(dsn: str, topic: str, count: int) -> None:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        await connection.execute(
            "INSERT INTO outbox_event (id, topic, aggregate_id, type, payload) "
            "SELECT gen_random_uuid(), $1, 'k' || n % $2, 'Counted', convert_to(n::text, 'UTF8') "
            "FROM generate_series(1, $3::int) AS n ORDER BY n",
            topic,
            KEYS,
            count,
        )
    finally:
        await connection.close(timeout=5)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.02)


async def until_dispatched(dsn: str, count: int) -> None:
    async with asyncio.timeout(BOUND):
        while await dispatched(dsn) < count:
            await asyncio.sleep(0.02)


async def test_O1_O2_all_that_was_committed_arrives_once_and_in_order_whoever_waits(
    database: str, kafka: str, topic: MakeTopic
) -> None:
    name, written = topic("orders", partitions=3), Written()
    relay = relay_over(database, kafka)
    async with running(relay) as (stop,), long_transaction(database):
        async with asyncio.TaskGroup() as writers:
            for number in range(WRITERS):
                writers.create_task(write(database, name, number, written))
        # The long transaction is still open: it stalls nobody.
        await until_dispatched(database, written.count)
    assert arrived(kafka, name) == written.by_key
    assert not stop.abandoned
    assert sum(told.dispatched for told in stop.told(ClaimSettled)) == written.count


def in_flight(relay: Relay, count: int) -> bool:
    return relay.progress.in_flight == count


async def test_a_trickle_of_events_goes_out_one_by_one_and_is_settled_together(
    database: str, kafka: str, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for the busiest machine.
    monkeypatch.setattr(answering, "_LATE", 5.0)
    name, count = topic("orders", partitions=1), 8
    relay = relay_over(database, kafka)
    async with running(relay) as (stop,):
        # The first event of a partition goes alone.
        await fill(database, name, 1)
        await until(lambda: stop.told(ClaimSettled))
        before = relay.progress.in_flight
        for number in range(1, count + 1):
            await fill(database, name, 1)
            await until(partial(in_flight, relay, before + number))
    assert not stop.abandoned
    # Meanwhile a claim or two looked for themselves, from time to time.
    told = [one.dispatched for one in stop.told(ClaimSettled)[1:]]
    assert sum(told) == count
    assert len(told) < count
    assert arrived(kafka, name) == await in_order(database)


async def test_relays_come_and_go_while_others_write(database: str, kafka: str, topic: MakeTopic) -> None:
    name, written = topic("orders", partitions=3), Written()

    async def come_and_go(number: int, over: asyncio.Event) -> None:
        while not over.is_set():
            relay = relay_over(database, kafka, f"relay {number}")
            async with running(relay) as (stop,):
                await until(lambda: stop.told(ClaimSettled) or over.is_set())
            assert not stop.abandoned

    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(2):
            group.create_task(come_and_go(number, over))
        async with asyncio.TaskGroup() as writers:
            for number in range(WRITERS):
                writers.create_task(write(database, name, number, written))
        over.set()
    async with running(relay_over(database, kafka)):
        await until_dispatched(database, written.count)
    assert arrived(kafka, name) == written.by_key


async def test_O14_relays_that_follow_one_another_double_nothing(database: str, kafka: str, topic: MakeTopic) -> None:
    name = topic("orders", partitions=3)
    await fill(database, name, EVENTS)
    relays = 0
    async with asyncio.timeout(BOUND):
        while await dispatched(database) < EVENTS:
            relays += 1
            async with running(relay_over(database, kafka)) as (stop,):
                # Each is told to stop in the middle of its work, as a rolling update does.
                await until(lambda: stop.told(ClaimSettled))
            assert not stop.abandoned
    assert relays > 3, "one relay did it all before it was stopped, so this shows nothing"
    assert sum(map(len, arrived(kafka, name).values())) == EVENTS


@pytest.mark.xdist_group("kafka to pause")
async def test_a_stop_is_bounded_when_broker_and_database_are_gone(
    paused_kafka: LocalKafka, own_postgres: Callable[..., LocalPostgres]
) -> None:
    name = f"orders-{time.monotonic_ns()}"
    await asyncio.to_thread(KafkaAddress(paused_kafka.bootstrap).create_topic, name, 3)
    server = own_postgres()
    dsn = server.dsn()
    async with connect(dsn) as connection:
        await schema.apply(connection)
    await fill(dsn, name, EVENTS)
    relay = relay_over(dsn, paused_kafka.bootstrap)
    try:
        async with running(relay, within=3.0) as (stop,):
            await until(lambda: stop.told(ClaimSettled))
            paused_kafka.pause()
            server.pause()
            began = time.monotonic()
        took = time.monotonic() - began
    finally:
        server.resume()
        paused_kafka.resume()
    # The stop's three seconds, and the closing of the resources, each bounded by its own.
    assert took < 15.0
    async with running(relay_over(dsn, paused_kafka.bootstrap)):
        await until_dispatched(dsn, EVENTS)
    seen = arrived(paused_kafka.bootstrap, name)
    assert sum(len(set(ids)) for ids in seen.values()) == EVENTS
    assert sum(map(len, seen.values())) <= EVENTS + IN_FLIGHT


HERE = Path(__file__).parent


class Processes:
    """Relays as processes on one database and one broker."""

    def __init__(self, dsn: str, bootstrap: str) -> None:
        self._environment = {
            "PYTHONPATH": str(HERE),
            "DATABASE_URL": dsn,
            "KAFKA_BOOTSTRAP": bootstrap,
        }
        self._started: list[ServiceProcess] = []

    def start(self, **environment: str) -> ServiceProcess:
        process = ServiceProcess(
            f"log_relay_service:{relay_service.name}", environment={**self._environment, **environment}
        ).start()
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.discard()


@pytest.fixture
def processes(database: str, kafka: str) -> Iterator[Processes]:
    started = Processes(database, kafka)
    yield started
    started.close()


POINTS = ["relay.claimed", "relay.published", "relay.settled", "outbox.claimed", "outbox.settled"]


@pytest.mark.parametrize("point", POINTS)
async def test_SIGKILL_loses_nothing_and_doubles_at_most_what_was_in_flight(
    database: str, kafka: str, topic: MakeTopic, processes: Processes, point: str
) -> None:
    name = topic("orders", partitions=3)
    await fill(database, name, EVENTS)
    killed = processes.start(QUIESCE_CRASH=f"{point}:4:SIGKILL")
    assert await asyncio.to_thread(killed.wait, 30.0) == 128 + signal.SIGKILL
    moved = await dispatched(database)
    assert moved < EVENTS
    processes.start()
    await until_dispatched(database, EVENTS)
    seen = arrived(kafka, name)
    firsts = {key: list(dict.fromkeys(ids)) for key, ids in seen.items()}
    assert sum(map(len, firsts.values())) == EVENTS, "lost"
    assert firsts == await in_order(database)
    assert sum(map(len, seen.values())) - EVENTS <= IN_FLIGHT


@pytest.mark.parametrize("point", POINTS)
async def test_O14_SIGTERM_in_a_batch_doubles_nothing(
    database: str, kafka: str, topic: MakeTopic, processes: Processes, point: str
) -> None:
    name = topic("orders", partitions=3)
    await fill(database, name, EVENTS)
    stopped = processes.start(QUIESCE_CRASH=f"{point}:4:SIGTERM")
    assert await asyncio.to_thread(stopped.wait, 30.0) == 0
    # What is on the topic is what the cursors say, before the next one begins.
    on_topic = sum(map(len, arrived(kafka, name).values()))
    assert 0 < on_topic == await dispatched(database) < EVENTS
    processes.start()
    await until_dispatched(database, EVENTS)
    assert arrived(kafka, name) == await in_order(database)


async def test_what_a_killed_relay_owned_goes_on_with_the_other(
    database: str, kafka: str, topic: MakeTopic, processes: Processes
) -> None:
    name = topic("orders", partitions=3)
    first, second = processes.start(), processes.start()
    for process in (first, second):
        await asyncio.to_thread(process.wait_for, "owns 8 of 16 lanes", 20.0)
    await fill(database, name, EVENTS)
    await until_dispatched(database, 1)
    first.kill()
    killed_at = time.monotonic()
    await asyncio.to_thread(second.wait_for, "owns 16 of 16 lanes", 5.0)
    print(f"owned {time.monotonic() - killed_at:.2f} s after SIGKILL")
    await until_dispatched(database, EVENTS)
    seen = arrived(kafka, name)
    assert {key: list(dict.fromkeys(ids)) for key, ids in seen.items()} == await in_order(database)
    assert sum(map(len, seen.values())) - EVENTS <= IN_FLIGHT


async def in_order(dsn: str) -> dict[str, list[str]]:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        by_key: dict[str, list[str]] = {}
        for event_id, key in await connection.fetch("SELECT id, aggregate_id FROM outbox_event ORDER BY position"):
            by_key.setdefault(key, []).append(str(event_id))
        return by_key
    finally:
        await connection.close(timeout=5)
