"""Marking events as handled in the handler's own transaction."""

from collections.abc import Iterable
from uuid import UUID

import asyncpg

from quiesce.inbox.entries import INSERT_ENTRY, MARK_ENTRIES, Entries, Id, entry_values, no_transaction
from quiesce.inbox.schema_steps import schema_missing
from quiesce.postgres.driver import AnyConnection

_MISSING = (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.UndefinedFunctionError)


async def inbox_entry(connection: AnyConnection, consumer: str, event_id: str | UUID | None) -> bool:
    """Marks an event as handled by `consumer`, in the transaction that is open on `connection`.

    True: it is new, so handle it in the same transaction. False: it was handled before, so there is nothing to do. The
    mark is there if, and only if, the transaction commits: a handler that fails leaves none. Two at once: the second
    waits for the end of the first one's transaction.

    `consumer` is who handles: two consumers of one event each handle it once. It must stay the same for ever.

    Raises:
        BadEventId: the id is missing, empty, longer than 512 bytes, or cannot be kept as text.
        InboxRefused: no transaction is open. Like BadEventId it comes before anything is sent, so an open transaction
            goes on as it was.
        SchemaMissing: the table is not there. The message names the command that creates it.
        SettingsError: the consumer has no name.
        asyncpg.PostgresError: whatever else the database says, such as a serialization failure where the transaction
            is REPEATABLE READ and another one has marked the event meanwhile.
    """
    values = entry_values(consumer, event_id)
    _require_transaction(connection)
    try:
        return await connection.fetchval(INSERT_ENTRY, *values) is not None
    except _MISSING as error:
        raise schema_missing(str(error)) from error


async def inbox_entries(connection: AnyConnection, consumer: str, event_ids: Iterable[Id]) -> set[Id]:
    """Marks many events at once, in one statement. Returns those that are new, as they were given.

    An id that is given twice is new once. For everything else see `inbox_entry`; one id that is refused refuses all.
    """
    return await mark_entries(connection, Entries.of(consumer, event_ids))


async def mark_entries(connection: AnyConnection, entries: Entries[Id]) -> set[Id]:
    """The same for ids that have been checked."""
    _require_transaction(connection)
    if not entries:
        return set()
    try:
        return entries.new(await connection.fetchval(MARK_ENTRIES, *entries.values))
    except _MISSING as error:
        raise schema_missing(str(error)) from error


def _require_transaction(connection: AnyConnection) -> None:
    if not connection.is_in_transaction():
        raise no_transaction("Write `async with connection.transaction():` around mark and handler")
