"""Writing into the outbox and looking into it, beside the stores."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from quiesce.outbox.event import OutboxEvent
from quiesce.postgres import enqueue
from quiesce.postgres.driver import Connection


def event(key: str = "k", payload: object = b"{}", **headers: str) -> OutboxEvent:
    return OutboxEvent("orders", key, "Placed", payload, headers)


async def write(connection: Connection, *events: OutboxEvent) -> None:
    """Enqueues the events in one transaction."""
    async with connection.transaction():
        for one in events:
            await enqueue(connection, one)


async def until(condition: Callable[[], Awaitable[bool]], within: float = 3.0) -> None:
    """Polls until it holds; fails after `within` seconds."""
    end = time.monotonic() + within
    while not await condition():
        assert time.monotonic() < end, f"not within {within:g} s"
        await asyncio.sleep(0.005)


async def others_locks(connection: Connection) -> int:
    """How many transactions of other sessions hold something in this database."""
    count = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND state IN ('idle in transaction', 'idle in transaction (aborted)', 'active')"
    )
    assert isinstance(count, int)
    return count
