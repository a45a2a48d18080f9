"""Marking events as handled in the handler's own transaction, through SQLAlchemy's sessions and connections."""

from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, overload
from uuid import UUID

from sqlalchemy import TextClause, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from quiesce.inbox.entries import INSERT_ENTRY, MARK_ENTRIES, MISSING_STATES, Entries, Id, entry_values, no_transaction
from quiesce.inbox.schema_steps import schema_missing
from quiesce.sqlalchemy.enqueue import Async, Sync, commits_by_itself
from quiesce.sqlalchemy.placeholders import named

_ONE, _MANY = text(named(INSERT_ENTRY)), text(named(MARK_ENTRIES))


@overload
def inbox_entry(where: Async, consumer: str, event_id: str | UUID | None) -> Coroutine[Any, Any, bool]: ...


@overload
def inbox_entry(where: Sync, consumer: str, event_id: str | UUID | None) -> bool: ...


def inbox_entry(where: Sync | Async, consumer: str, event_id: str | UUID | None) -> bool | Coroutine[Any, Any, bool]:
    """Marks an event as handled by `consumer`, in the transaction of a session or connection; awaited where `where` is
    async.

    True: it is new, so handle it in the same transaction. False: it was handled before, so there is nothing to do. The
    mark is there if, and only if, the transaction commits: a handler that fails leaves none. Two at once: the second
    waits for the end of the first one's transaction. A session with several engines: pass `session.connection(...)`.

    `consumer` is who handles: two consumers of one event each handle it once. It must stay the same for ever.

    Raises:
        BadEventId: the id is missing, empty, longer than 512 bytes, or cannot be kept as text.
        InboxRefused: the mark would be committed at once, by AUTOCOMMIT. Like BadEventId it comes before anything is
            sent, so an open transaction goes on as it was.
        SchemaMissing: the table is not there. The message names the command that creates it.
        SettingsError: the consumer has no name.
        sqlalchemy.exc.SQLAlchemyError: whatever else SQLAlchemy or the database says, such as a serialization failure
            where the transaction is REPEATABLE READ and another one has marked the event meanwhile.
    """
    values = entry_values(consumer, event_id)
    if isinstance(where, AsyncSession | AsyncConnection):
        return _entry_async(where, values)
    return _row(where, _ONE, values) is not None


@overload
def inbox_entries(where: Async, consumer: str, event_ids: Iterable[Id]) -> Coroutine[Any, Any, set[Id]]: ...


@overload
def inbox_entries(where: Sync, consumer: str, event_ids: Iterable[Id]) -> set[Id]: ...


def inbox_entries(
    where: Sync | Async, consumer: str, event_ids: Iterable[Id]
) -> set[Id] | Coroutine[Any, Any, set[Id]]:
    """Marks many events at once, in one statement. Returns those that are new, as they were given.

    An id that is given twice is new once. For everything else see `inbox_entry`; one id that is refused refuses all.
    """
    entries = Entries.of(consumer, event_ids)
    if isinstance(where, AsyncSession | AsyncConnection):
        return mark_entries_async(where, entries)
    row = _row(where, _MANY, entries.values, nothing=not entries)
    return set() if row is None else entries.new(row[0])


async def _entry_async(where: Async, values: Sequence[Any]) -> bool:
    return await _row_async(where, _ONE, values) is not None


async def mark_entries_async(where: Async, entries: Entries[Id]) -> set[Id]:
    """As `inbox_entries`, for ids that have been checked."""
    row = await _row_async(where, _MANY, entries.values, nothing=not entries)
    return set() if row is None else entries.new(row[0])


async def _row_async(where: Async, sql: TextClause, values: Sequence[Any], *, nothing: bool = False) -> Any:
    # Both run a function of the sync kind on their own connection, so there is one way of doing it.
    if isinstance(where, AsyncSession):
        return await where.run_sync(_row, sql, values, nothing=nothing)
    return await where.run_sync(_row, sql, values, nothing=nothing)


def _row(where: Sync, sql: TextClause, values: Sequence[Any], *, nothing: bool = False) -> Any:
    connection = where.connection() if isinstance(where, Session) else where
    if commits_by_itself(connection):
        raise no_transaction(
            "This one is in AUTOCOMMIT: take one that is not, and write `begin()` around mark and handler"
        )
    if nothing:
        return None
    try:
        given = {f"p{number}": value for number, value in enumerate(values, start=1)}
        return connection.execute(sql, given).one_or_none()
    except ProgrammingError as error:
        state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
        if state in MISSING_STATES:
            raise schema_missing(str(error.orig)) from error
        raise
