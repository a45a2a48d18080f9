"""Relays whose database is far away: every answer takes its time, and nothing else is different."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from outbox_table import event, until, write
from wire_proxy import WireProxy

from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.events import OutageBegan
from quiesce.postgres import OutboxLog, OutboxRows
from quiesce.postgres.driver import Connection
from quiesce.relay import Relay
from quiesce.testing.manual_stop import ManualStop
from quiesce.testing.memory_publisher import MemoryBroker, MemoryPublisher

FAR = 0.05
"""Seconds, one way: ten times what lies between two zones, and about an ocean."""


@pytest.fixture
async def proxy(outbox: str) -> AsyncIterator[WireProxy]:
    async with WireProxy(outbox, delay=FAR) as started:
        yield started


@pytest.mark.parametrize("kind", [OutboxLog, OutboxRows])
async def test_two_relays_far_from_their_database_move_everything_once_and_stop_in_time(
    kind: type[OutboxLog] | type[OutboxRows], db: Connection, proxy: WireProxy
) -> None:
    broker = MemoryBroker()
    broker.create_topic("orders")
    relays = [Relay(kind(proxy.dsn), MemoryPublisher(broker), name=f"relay {number}") for number in range(2)]
    stops = [ManualStop(relay.name) for relay in relays]
    for relay in relays:
        for resource in relay.resources:
            await resource.open()
    running = [asyncio.create_task(relay.run(stop)) for relay, stop in zip(relays, stops, strict=True)]
    for number in range(300):
        await write(db, event(f"key {number % 20}", str(number).encode()))

    async def moved() -> bool:
        left = "SELECT 300 - sum(dispatched) FROM outbox_lane"
        if kind is OutboxRows:
            left = "SELECT count(*) FROM outbox_event WHERE dispatched_at IS NULL"
        return not await db.fetchval(left)

    await until(moved, within=60)
    for stop in stops:
        stop.now(within=5.0)
    done, late = await asyncio.wait(running, timeout=5.0)
    assert not late
    for task in done:
        await task
    came = [(record.key, int(record.value or b"")) for record in broker.records("orders")]
    assert sorted(number for _, number in came) == list(range(300))
    for key in {key for key, _ in came}:
        numbers = [number for of, number in came if of == key]
        assert numbers == sorted(numbers)
    for relay, stop in zip(relays, stops, strict=True):
        assert stop.abandoned == []
        assert stop.told(OutageBegan) == []
        for resource in relay.resources:
            closed = await resource.close(Deadline(time.monotonic() + 3.0))
            assert not closed.forced, closed.detail
