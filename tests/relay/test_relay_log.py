"""The promises of the outbox over the log store, on real PostgreSQL and real Kafka."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import asyncpg
import pytest
from log_relay_service import relay as relay_service
from relays_on_kafka import (
    BOUND,
    IN_FLIGHT,
    KEYS,
    MakeTopic,
    arrived,
    dispatched,
    fill,
    firsts,
    in_order,
    relay_over,
    running,
    until,
    until_dispatched,
)

from quiesce.kafka import answering
from quiesce.outbox import OutboxEvent
from quiesce.outbox.events import ClaimSettled
from quiesce.postgres import enqueue
from quiesce.relay import Relay
from quiesce.testing.service_process import ServiceProcess

pytestmark = pytest.mark.needs("kafka")

WRITERS, ROUNDS = 6, 60
EVENTS = 3000


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
    assert sum(map(len, firsts(seen).values())) == EVENTS, "lost"
    assert firsts(seen) == await in_order(database)
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
    assert firsts(seen) == await in_order(database)
    assert sum(map(len, seen.values())) - EVENTS <= IN_FLIGHT
