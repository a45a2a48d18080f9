"""A whole flood of events that cannot be published, in front of those that can: on real PostgreSQL and real Kafka."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import takewhile
from typing import Protocol

import asyncpg
import pytest
from broker import records

from quiesce.kafka import KafkaPublisher
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.events import ClaimSettled
from quiesce.outbox.ports import OutboxStore
from quiesce.outbox.retry import RetryPolicy
from quiesce.postgres import OutboxLog, OutboxRows
from quiesce.relay import Relay
from quiesce.testing.manual_stop import ManualStop

pytestmark = pytest.mark.needs("kafka")

FLOOD, BOUND = 3000, 40.0


class MakeTopic(Protocol):
    def __call__(self, name_prefix: str = ..., partitions: int = ...) -> str: ...


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[ManualStop]:
    stop = ManualStop(relay.name)
    for resource in relay.resources:
        await resource.open()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(relay.run(stop))
            try:
                yield stop
            finally:
                stop.now(within=10.0)
    finally:
        for resource in reversed(relay.resources):
            await resource.close(Deadline(asyncio.get_running_loop().time() + 5.0))


async def insert(dsn: str, topic: str, count: int, key: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        await connection.execute(
            "INSERT INTO outbox_event (id, aggregate_id, topic, type, payload) "
            "SELECT gen_random_uuid(), $1 || n, $2, 'Counted', '{}' FROM generate_series(1, $3::int) AS n",
            key,
            topic,
            count,
        )
    finally:
        await connection.close(timeout=5)


@pytest.mark.parametrize("store", [OutboxLog, OutboxRows], ids=["log", "row"])
async def test_O24_a_flood_for_a_missing_topic_delays_others_by_its_reading_and_no_more(
    database: str, kafka: str, topic: MakeTopic, store: Callable[[str], OutboxStore]
) -> None:
    """From a cold start: nothing was ever acked. The retries are due at once, so there is no end of them."""
    name = topic("orders")
    await insert(database, f"{name}-missing", FLOOD, "bad ")
    await insert(database, name, 10, "good ")
    retry = RetryPolicy(attempts=1_000_000, backoff=Backoff(first=0.01, ceiling=0.01))
    relay = Relay(store(database), KafkaPublisher(kafka), retry=retry)
    async with running(relay) as stop:
        async with asyncio.timeout(BOUND):
            while sum(one.dispatched for one in stop.told(ClaimSettled)) < 10:
                await asyncio.sleep(0.02)
    before = list(takewhile(lambda one: not one.dispatched, stop.told(ClaimSettled)))
    # A quarter of each claim, at most, was offered before.
    assert sum(one.retried for one in before) <= FLOOD * 4 / 3 + relay.settings.max_in_flight
    assert len(before) < FLOOD / 20
    assert len(list(records(kafka, name))) == 10
