"""Relays over the log store in this process, on real servers; and what of their work has arrived."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

import asyncpg
from broker import records

from quiesce.kafka import KafkaPublisher
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Resource
from quiesce.postgres import OutboxLog
from quiesce.relay import Relay
from quiesce.testing.manual_stop import ManualStop

KEYS = 40
IN_FLIGHT = 300
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


def relay_over(dsn: str, bootstrap: str, name: str = "relay", *, publish_bound: float = 10.0) -> Relay:
    return Relay(
        OutboxLog(dsn, claims=4, statement_timeout=2.0, connect_timeout=2.0),
        KafkaPublisher(bootstrap),
        name=name,
        batch=50,
        max_in_flight=IN_FLIGHT,
        max_claims=3,
        publish_bound=publish_bound,
    )


def arrived(bootstrap: str, topic: str) -> dict[str, list[str]]:
    """Ids by key, in the order of the topic."""
    by_key: dict[str, list[str]] = {}
    for record in records(bootstrap, topic):
        assert record.key is not None
        by_key.setdefault(record.key.decode(), []).append(str(record.event_id))
    return by_key


def firsts(seen: dict[str, list[str]]) -> dict[str, list[str]]:
    """Without repeats: the order that is promised is that of first occurrences."""
    return {key: list(dict.fromkeys(ids)) for key, ids in seen.items()}


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


async def in_order(dsn: str) -> dict[str, list[str]]:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        by_key: dict[str, list[str]] = {}
        for event_id, key in await connection.fetch("SELECT id, aggregate_id FROM outbox_event ORDER BY position"):
            by_key.setdefault(key, []).append(str(event_id))
        return by_key
    finally:
        await connection.close(timeout=5)
