"""All stores pass the published contract: the one on rows, the one on the log, and the one in memory."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from uuid import UUID

import pytest
from outbox_table import write

from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.event import OutboxEvent
from quiesce.outbox.ports import OutboxStore
from quiesce.postgres import OutboxLog, OutboxRows, connect, enqueue
from quiesce.postgres.driver import Connection
from quiesce.testing.contracts import outbox_store
from quiesce.testing.contracts.outbox_store import Check, State
from quiesce.testing.memory_outbox import MemoryOutbox, MemoryTable


class RowWorld:
    def __init__(self, dsn: str, db: Connection, stack: AsyncExitStack) -> None:
        self._dsn = dsn
        self._db = db
        self._stack = stack

    async def store(self) -> OutboxStore:
        store = OutboxRows(self._dsn, claims=3)
        self._stack.push_async_callback(store.close, Deadline(time.monotonic() + 30.0))
        return await store.open()

    async def enqueue(self, *events: OutboxEvent) -> None:
        await write(self._db, *events)

    async def enqueue_late(self, event: OutboxEvent) -> Callable[[], Awaitable[None]]:
        connection = await self._stack.enter_async_context(connect(self._dsn))
        transaction = connection.transaction()
        await transaction.start()
        await enqueue(connection, event)

        async def commit() -> None:
            await transaction.commit()

        return commit

    async def state(self, event_id: UUID) -> State:
        row = await self._db.fetchrow(
            "SELECT dispatched_at, dead_at, parked.state AS parked FROM outbox_event AS event "
            "LEFT JOIN outbox_parked AS parked ON parked.event_id = event.id WHERE event.id = $1",
            event_id,
        )
        assert row is not None
        marks = (row["dispatched_at"] is not None, row["dead_at"] is not None, row["parked"])
        states: dict[tuple[bool, bool, str | None], State] = {
            (True, False, None): "dispatched",
            (False, True, "dead"): "dead",
            (False, False, "retry"): "retry",
            (False, False, None): "waiting",
        }
        return states[marks]


class DeletingWorld(RowWorld):
    async def store(self) -> OutboxStore:
        store = OutboxRows(self._dsn, claims=3, dispatched="delete")
        self._stack.push_async_callback(store.close, Deadline(time.monotonic() + 30.0))
        return await store.open()

    async def state(self, event_id: UUID) -> State:
        if await self._db.fetchval("SELECT EXISTS (SELECT FROM outbox_event WHERE id = $1)", event_id):
            return await super().state(event_id)
        assert not await self._db.fetchval("SELECT EXISTS (SELECT FROM outbox_parked WHERE event_id = $1)", event_id)
        return "dispatched"


class LogWorld(RowWorld):
    async def store(self) -> OutboxStore:
        store = OutboxLog(self._dsn, claims=3)
        self._stack.push_async_callback(store.close, Deadline(time.monotonic() + 30.0))
        return await store.open()

    async def state(self, event_id: UUID) -> State:
        row = await self._db.fetchrow(
            """
            SELECT parked.state AS parked, parked.attempts,
                event.position <= lane.last AND pg_visible_in_snapshot(event.xid, lane.seen)
                OR coalesce(event.position <= lane.at AND pg_visible_in_snapshot(event.xid, lane.until), false) AS read
            FROM outbox_event AS event JOIN outbox_lane AS lane USING (lane)
            LEFT JOIN outbox_parked AS parked ON parked.event_id = event.id WHERE event.id = $1
            """,
            event_id,
        )
        assert row is not None
        assert row["read"] or row["parked"] is None
        if row["parked"] == "dead":
            return "dead"
        if row["parked"] is not None:
            # One that was given back has not failed.
            return "retry" if row["attempts"] else "waiting"
        return "dispatched" if row["read"] else "waiting"


class MemoryWorld:
    def __init__(self) -> None:
        self._table = MemoryTable()

    async def store(self) -> OutboxStore:
        return await MemoryOutbox(self._table).open()

    async def enqueue(self, *events: OutboxEvent) -> None:
        self._table.enqueue(*events)

    async def enqueue_late(self, event: OutboxEvent) -> Callable[[], Awaitable[None]]:
        commit = self._table.add(event)

        async def commit_it() -> None:
            commit()

        return commit_it

    async def state(self, event_id: UUID) -> State:
        row = self._table.row(event_id)
        if row.dispatched:
            return "dispatched"
        if row.dead:
            return "dead"
        return "waiting" if row.retry_at is None else "retry"


@pytest.fixture
async def rows(outbox: str, db: Connection) -> AsyncIterator[RowWorld]:
    async with AsyncExitStack() as stack:
        yield RowWorld(outbox, db, stack)


@pytest.mark.parametrize("check", outbox_store.CHECKS, ids=lambda check: check.__name__)
async def test_rows(check: Check, rows: RowWorld) -> None:
    await check(rows)


@pytest.mark.parametrize("check", outbox_store.CHECKS, ids=lambda check: check.__name__)
async def test_rows_that_are_deleted(check: Check, outbox: str, db: Connection) -> None:
    async with AsyncExitStack() as stack:
        await check(DeletingWorld(outbox, db, stack))


@pytest.fixture
async def log(outbox: str, db: Connection) -> AsyncIterator[LogWorld]:
    async with AsyncExitStack() as stack:
        yield LogWorld(outbox, db, stack)


@pytest.mark.parametrize("check", outbox_store.CHECKS, ids=lambda check: check.__name__)
async def test_log(check: Check, log: LogWorld) -> None:
    await check(log)


@pytest.mark.parametrize("check", outbox_store.CHECKS, ids=lambda check: check.__name__)
async def test_memory(check: Check) -> None:
    await check(MemoryWorld())
