"""Marking events as handled in the handler's own transaction, through psycopg."""

from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, overload
from uuid import UUID

from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor, errors
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from quiesce.inbox.entries import INSERT_ENTRY, MARK_ENTRIES, Entries, Id, entry_values, no_transaction
from quiesce.inbox.schema_steps import schema_missing

_MISSING = (errors.UndefinedTable, errors.UndefinedColumn, errors.UndefinedFunction)


@overload
def inbox_entry(
    connection: AsyncConnection[Any], consumer: str, event_id: str | UUID | None
) -> Coroutine[Any, Any, bool]: ...


@overload
def inbox_entry(connection: Connection[Any], consumer: str, event_id: str | UUID | None) -> bool: ...


def inbox_entry(
    connection: Connection[Any] | AsyncConnection[Any], consumer: str, event_id: str | UUID | None
) -> bool | Coroutine[Any, Any, bool]:
    """Marks an event as handled by `consumer`, in the transaction of `connection`; awaited where it is async.

    True: it is new, so handle it in the same transaction. False: it was handled before, so there is nothing to do. The
    mark is there if, and only if, the transaction commits: a handler that fails leaves none. Two at once: the second
    waits for the end of the first one's transaction.

    Without autocommit psycopg begins a transaction with the first statement, so this may be the first one; with
    autocommit it takes `connection.transaction()`. `consumer` is who handles: two consumers of one event each handle
    it once. It must stay the same for ever.

    Raises:
        BadEventId: the id is missing, empty, longer than 512 bytes, or cannot be kept as text.
        InboxRefused: the mark would be committed at once, by autocommit. Like BadEventId it comes before anything is
            sent, so an open transaction goes on as it was.
        SchemaMissing: the table is not there. The message names the command that creates it.
        SettingsError: the consumer has no name.
        psycopg.Error: whatever else the database says, such as a serialization failure where the transaction is
            REPEATABLE READ and another one has marked the event meanwhile.
    """
    values = entry_values(consumer, event_id)
    if isinstance(connection, AsyncConnection):
        return _entry_async(connection, values)
    return _row(connection, INSERT_ENTRY, values) is not None


@overload
def inbox_entries(
    connection: AsyncConnection[Any], consumer: str, event_ids: Iterable[Id]
) -> Coroutine[Any, Any, set[Id]]: ...


@overload
def inbox_entries(connection: Connection[Any], consumer: str, event_ids: Iterable[Id]) -> set[Id]: ...


def inbox_entries(
    connection: Connection[Any] | AsyncConnection[Any], consumer: str, event_ids: Iterable[Id]
) -> set[Id] | Coroutine[Any, Any, set[Id]]:
    """Marks many events at once, in one statement. Returns those that are new, as they were given.

    An id that is given twice is new once. For everything else see `inbox_entry`; one id that is refused refuses all.
    """
    entries = Entries.of(consumer, event_ids)
    if isinstance(connection, AsyncConnection):
        return mark_entries_async(connection, entries)
    row = _row(connection, MARK_ENTRIES, entries.values, nothing=not entries)
    return set() if row is None else entries.new(row[0])


async def _entry_async(connection: AsyncConnection[Any], values: tuple[str, str]) -> bool:
    return await _row_async(connection, INSERT_ENTRY, values) is not None


async def mark_entries_async(connection: AsyncConnection[Any], entries: Entries[Id]) -> set[Id]:
    """As `inbox_entries`, for ids that have been checked."""
    row = await _row_async(connection, MARK_ENTRIES, entries.values, nothing=not entries)
    return set() if row is None else entries.new(row[0])


def _row(
    connection: Connection[Any], sql: str, values: Sequence[Any], *, nothing: bool = False
) -> tuple[Any, ...] | None:
    _require_transaction(connection, "with")
    if nothing:
        return None
    try:
        # A raw cursor takes the placeholders of PostgreSQL itself; the connection's own rows may be of any kind.
        with RawCursor(connection, row_factory=tuple_row) as cursor:
            return cursor.execute(sql.encode(), values).fetchone()
    except _MISSING as error:
        raise schema_missing(str(error)) from error


async def _row_async(
    connection: AsyncConnection[Any], sql: str, values: Sequence[Any], *, nothing: bool = False
) -> tuple[Any, ...] | None:
    _require_transaction(connection, "async with")
    if nothing:
        return None
    try:
        async with AsyncRawCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(sql.encode(), values)
            return await cursor.fetchone()
    except _MISSING as error:
        raise schema_missing(str(error)) from error


def _require_transaction(connection: Connection[Any] | AsyncConnection[Any], word: str) -> None:
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise no_transaction(
            f"This one is in autocommit: write `{word} connection.transaction():` around mark and handler"
        )
