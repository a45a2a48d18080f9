"""Writing events in the caller's own transaction, through SQLAlchemy's sessions and connections."""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, overload
from uuid import UUID

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from quiesce.outbox import MAX_EVENT_BYTES, OutboxEvent, batch_statement, statement
from quiesce.outbox.refusals import MISSING_STATES, no_connection, no_transaction, schema_missing
from quiesce.outbox.statement import INSERT, INSERT_MANY
from quiesce.sqlalchemy.placeholders import named

Sync = Session | Connection
Async = AsyncSession | AsyncConnection

_ONE, _MANY = text(named(INSERT)), text(named(INSERT_MANY))


@overload
def enqueue(
    where: Async, event: OutboxEvent, *, max_event_bytes: int = MAX_EVENT_BYTES
) -> Coroutine[Any, Any, UUID]: ...


@overload
def enqueue(where: Sync, event: OutboxEvent, *, max_event_bytes: int = MAX_EVENT_BYTES) -> UUID: ...


def enqueue(
    where: Sync | Async, event: OutboxEvent, *, max_event_bytes: int = MAX_EVENT_BYTES
) -> UUID | Coroutine[Any, Any, UUID]:
    """Writes `event` into the outbox, in the transaction of a session or connection. Returns its id; awaited where
    `where` is async.

    The event is published if, and only if, that transaction commits. SQLAlchemy begins one with the first
    statement. What waits in a session is flushed first: so the row of the aggregate is written, and locked, before
    the event gets its place, and events of one aggregate keep the order of their transactions. A session with
    several engines: pass `session.connection(...)`.

    Raises:
        EnqueueError: the event would be committed at once, by AUTOCOMMIT, or is one that could never be published.
            Nothing was sent to the database, so an open transaction goes on as it was.
        SchemaMissing: the table is not there. The message names the command that creates it.
        sqlalchemy.exc.SQLAlchemyError: whatever else SQLAlchemy or the database says, such as an IntegrityError
            for an id that was enqueued before.
    """
    if isinstance(where, AsyncSession | AsyncConnection):
        return _enqueue_async(where, event, max_event_bytes)
    _insert(where, _ONE, statement(event, max_event_bytes).values)
    return event.id


@overload
def enqueue_many(
    where: Async, events: Sequence[OutboxEvent], *, max_event_bytes: int = MAX_EVENT_BYTES
) -> Coroutine[Any, Any, list[UUID]]: ...


@overload
def enqueue_many(
    where: Sync, events: Sequence[OutboxEvent], *, max_event_bytes: int = MAX_EVENT_BYTES
) -> list[UUID]: ...


def enqueue_many(
    where: Sync | Async, events: Sequence[OutboxEvent], *, max_event_bytes: int = MAX_EVENT_BYTES
) -> list[UUID] | Coroutine[Any, Any, list[UUID]]:
    """Writes `events` in their order and in one round trip, all or none of them. Returns their ids.

    For everything else see `enqueue`; one event that is refused refuses all.
    """
    if isinstance(where, AsyncSession | AsyncConnection):
        return _enqueue_many_async(where, events, max_event_bytes)
    _insert(where, _MANY, batch_statement(events, max_event_bytes).values, nothing=not events)
    return [event.id for event in events]


async def _enqueue_async(where: Async, event: OutboxEvent, max_event_bytes: int) -> UUID:
    values = statement(event, max_event_bytes).values
    await _on_connection(where, _ONE, values)
    return event.id


async def _enqueue_many_async(where: Async, events: Sequence[OutboxEvent], max_event_bytes: int) -> list[UUID]:
    values = batch_statement(events, max_event_bytes).values
    await _on_connection(where, _MANY, values, nothing=not events)
    return [event.id for event in events]


async def _on_connection(where: Async, sql: TextClause, values: Sequence[Any], *, nothing: bool = False) -> None:
    # Both run a function of the sync kind on their own connection, so there is one way of doing it.
    if isinstance(where, AsyncSession):
        await where.run_sync(_insert, sql, values, nothing=nothing)
    else:
        await where.run_sync(_insert, sql, values, nothing=nothing)


def _insert(where: Sync, sql: TextClause, values: Sequence[Any], *, nothing: bool = False) -> None:
    if isinstance(where, Session):
        where.flush()
        connection = where.connection()
    elif isinstance(where, Connection):
        connection = where
    else:
        raise no_connection(
            where, "a session or a connection of SQLAlchemy: write `with engine.begin() as connection:`"
        )
    if commits_by_itself(connection):
        raise no_transaction("This one is in AUTOCOMMIT: take one that is not, and write `begin()` around both")
    if nothing:
        return
    try:
        connection.execute(sql, _parameters(values))
    except ProgrammingError as error:
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        if state in MISSING_STATES:
            raise schema_missing(str(error.orig)) from error
        raise


def _parameters(values: Sequence[Any]) -> Mapping[str, Any]:
    return {f"p{number}": value for number, value in enumerate(values, start=1)}


def commits_by_itself(connection: Connection) -> bool:
    """Whether every statement is a transaction of its own."""
    own = connection.get_execution_options().get("isolation_level")
    if own is None:
        # What `create_engine(isolation_level=...)` was given; there is no public way to ask without a round trip.
        own = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return own == "AUTOCOMMIT"
