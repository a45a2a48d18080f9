"""Writing events in the caller's own transaction, through psycopg."""

from collections.abc import Coroutine, Sequence
from typing import Any, overload
from uuid import UUID

from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor, errors
from psycopg.pq import TransactionStatus

from quiesce.outbox import MAX_EVENT_BYTES, OutboxEvent, batch_statement, statement
from quiesce.outbox.refusals import no_connection, no_transaction, schema_missing

_MISSING = (errors.UndefinedTable, errors.UndefinedColumn)


@overload
def enqueue(
    connection: AsyncConnection[Any], event: OutboxEvent, *, max_event_bytes: int = MAX_EVENT_BYTES
) -> Coroutine[Any, Any, UUID]: ...


@overload
def enqueue(connection: Connection[Any], event: OutboxEvent, *, max_event_bytes: int = MAX_EVENT_BYTES) -> UUID: ...


def enqueue(
    connection: Connection[Any] | AsyncConnection[Any], event: OutboxEvent, *, max_event_bytes: int = MAX_EVENT_BYTES
) -> UUID | Coroutine[Any, Any, UUID]:
    """Writes `event` into the outbox, in the transaction of `connection`. Returns its id; awaited where it is async.

    The event is published if, and only if, that transaction commits. Without autocommit psycopg begins a
    transaction with the first statement, so this may be the first one; with autocommit it takes
    `connection.transaction()`. For order per aggregate, lock the aggregate (or write its row) before this call.

    Raises:
        EnqueueError: the event would be committed at once, by autocommit, or is one that could never be published.
            Nothing was sent to the database, so an open transaction goes on as it was.
        SchemaMissing: the table is not there. The message names the command that creates it.
        psycopg.Error: whatever else the database says, such as a unique violation for an id that was enqueued
            before.
    """
    if isinstance(connection, AsyncConnection):
        return _enqueue_async(connection, event, max_event_bytes)
    _insert(connection, *statement(event, max_event_bytes))
    return event.id


@overload
def enqueue_many(
    connection: AsyncConnection[Any], events: Sequence[OutboxEvent], *, max_event_bytes: int = MAX_EVENT_BYTES
) -> Coroutine[Any, Any, list[UUID]]: ...


@overload
def enqueue_many(
    connection: Connection[Any], events: Sequence[OutboxEvent], *, max_event_bytes: int = MAX_EVENT_BYTES
) -> list[UUID]: ...


def enqueue_many(
    connection: Connection[Any] | AsyncConnection[Any],
    events: Sequence[OutboxEvent],
    *,
    max_event_bytes: int = MAX_EVENT_BYTES,
) -> list[UUID] | Coroutine[Any, Any, list[UUID]]:
    """Writes `events` in their order and in one round trip, all or none of them. Returns their ids.

    For everything else see `enqueue`; one event that is refused refuses all.
    """
    if isinstance(connection, AsyncConnection):
        return _enqueue_many_async(connection, events, max_event_bytes)
    _insert(connection, *batch_statement(events, max_event_bytes), nothing=not events)
    return [event.id for event in events]


async def _enqueue_async(connection: AsyncConnection[Any], event: OutboxEvent, max_event_bytes: int) -> UUID:
    await _insert_async(connection, *statement(event, max_event_bytes))
    return event.id


async def _enqueue_many_async(
    connection: AsyncConnection[Any], events: Sequence[OutboxEvent], max_event_bytes: int
) -> list[UUID]:
    await _insert_async(connection, *batch_statement(events, max_event_bytes), nothing=not events)
    return [event.id for event in events]


def _insert(connection: Connection[Any], sql: str, values: Sequence[Any], *, nothing: bool = False) -> None:
    _require_transaction(connection, "with")
    if nothing:
        return
    try:
        # A raw cursor takes the placeholders of PostgreSQL itself, so the statement is the one of every adapter.
        with RawCursor(connection) as cursor:
            cursor.execute(sql.encode(), values)
    except _MISSING as error:
        raise schema_missing(str(error)) from error


async def _insert_async(
    connection: AsyncConnection[Any], sql: str, values: Sequence[Any], *, nothing: bool = False
) -> None:
    _require_transaction(connection, "async with")
    if nothing:
        return
    try:
        async with AsyncRawCursor(connection) as cursor:
            await cursor.execute(sql.encode(), values)
    except _MISSING as error:
        raise schema_missing(str(error)) from error


def _require_transaction(connection: Connection[Any] | AsyncConnection[Any], word: str) -> None:
    if not isinstance(connection, Connection | AsyncConnection):
        raise no_connection(connection, "a connection of psycopg: write `with pool.connection() as connection:`")
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise no_transaction(f"This one is in autocommit: write `{word} connection.transaction():` around both")
