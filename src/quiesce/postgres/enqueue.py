"""Writing events in the caller's own transaction."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from quiesce.outbox import MAX_EVENT_BYTES, OutboxEvent, batch_statement, statement
from quiesce.outbox.refusals import no_connection, no_transaction, schema_missing
from quiesce.postgres.driver import AnyConnection


async def enqueue(connection: AnyConnection, event: OutboxEvent, *, max_event_bytes: int = MAX_EVENT_BYTES) -> UUID:
    """Writes `event` into the outbox, in the transaction that is open on `connection`. Returns its id.

    The event is published if, and only if, that transaction commits. `connection` comes from asyncpg, or from a
    pool's `acquire()`. For order per aggregate, lock the aggregate (or write its row) before this call.

    Raises:
        EnqueueError: it was given a pool, no transaction is open, or the event is one that could never be published.
            Nothing was sent to the database, so an open transaction goes on as it was.
        SchemaMissing: the table is not there. The message names the command that creates it.
        asyncpg.PostgresError: whatever else the database says, such as a unique violation for an id that
            was enqueued before.
    """
    await _insert(connection, *statement(event, max_event_bytes))
    return event.id


async def enqueue_many(
    connection: AnyConnection, events: Sequence[OutboxEvent], *, max_event_bytes: int = MAX_EVENT_BYTES
) -> list[UUID]:
    """Writes `events` in their order and in one round trip, all or none of them. Returns their ids.

    For everything else see `enqueue`; one event that is refused refuses all.
    """
    await _insert(connection, *batch_statement(events, max_event_bytes), nothing=not events)
    return [event.id for event in events]


async def _insert(connection: AnyConnection, sql: str, values: Sequence[Any], *, nothing: bool = False) -> None:
    # Told by what it can do: a pool hands out a stand-in for the connection.
    if not hasattr(connection, "is_in_transaction"):
        takes = "a connection of asyncpg: write `async with pool.acquire() as connection, connection.transaction():`"
        raise no_connection(connection, takes)
    if not connection.is_in_transaction():
        raise no_transaction("Write `async with connection.transaction():` around both")
    if nothing:
        return
    try:
        await connection.execute(sql, *values)
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        raise schema_missing(str(error)) from error
