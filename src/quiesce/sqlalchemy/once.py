"""Handlers whose effect is there once, on connections of SQLAlchemy's engine, or on sessions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    nullcontext,
)
from functools import partial
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, async_sessionmaker

from quiesce.cancelling import ROLLBACK_BOUND, cancelled_again
from quiesce.errors import QuiesceError, SettingsError, TransactionAborted, Unavailable
from quiesce.inbox.event_id import event_id_of
from quiesce.inbox.once import SWALLOWED, EventId, Once, once_each
from quiesce.inbox.once import once_batch as once_in_batches
from quiesce.inbox.outage import away, hangs, meaning_of
from quiesce.sqlalchemy.enqueue import Async
from quiesce.sqlalchemy.inbox import inbox_entry, mark_entries_async
from quiesce.sqlalchemy.kept_open import KeptOpen

_ACTIVE = 1
"""What libpq says of a connection with a statement under way. Psycopg is not imported here: it may be missing."""
_IN_ERROR = 3
"""And of one whose transaction is aborted."""
_ABORTED = "25P02"

_ENDED = (
    "the transaction of this record is committed with its mark, once its handler is done, and that has ended it: "
    "nothing of it is committed. Leave commit and rollback out; where a flush may fail, put it into a savepoint"
)

Database = AsyncEngine | async_sessionmaker[Any]


def once(
    db: Database, consumer: str, handler: Callable[..., Awaitable[object]], *, event_id: EventId = event_id_of
) -> Once:
    """A handler for `Consumer` that calls `handler(record, connection, *args)` for each event that is new.

    `db` is an `AsyncEngine`, or an `async_sessionmaker`, and then the handler gets a session. A transaction is open on
    it, in which the event is marked as handled; what the handler writes is committed with the mark, or not at all. A
    duplicate is answered without the handler.

    While the database is away it raises `Unavailable`, so that the consumer holds the record and counts no attempt. The
    handler does not end the transaction: its `commit` is refused with RuntimeError, and so is the record after its
    `rollback`.

    Args:
        consumer: who handles; see `inbox_entry`. It must stay the same for ever.
        event_id: finds the id of a record; by default in its header `id`, where the outbox's relay writes it.

    Raises:
        SettingsError: the consumer has no name, or `db` is something else.
    """
    return once_each(_transactions(db), _mark, consumer, handler, event_id)


def once_batch(
    db: Database, consumer: str, handler: Callable[..., Awaitable[object]], *, event_id: EventId = event_id_of
) -> Once:
    """A batch handler that calls `handler(records, connection, *args)` with the records whose events are new.

    They are in their order; of an event that came twice the first one is there. All of them are marked by one
    statement. Nothing is called where none is new. For everything else see `once`.
    """
    return once_in_batches(_transactions(db), mark_entries_async, consumer, handler, event_id)


async def _mark(where: Async, consumer: str, event_id: str) -> bool:
    return await inbox_entry(where, consumer, event_id)


def _transactions(db: Database) -> "partial[Any]":
    given: object = db
    if not isinstance(given, AsyncEngine | async_sessionmaker):
        raise SettingsError(f"inbox: db: got {type(given).__name__}, takes an AsyncEngine or an async_sessionmaker")
    return partial(_transaction, db)


@asynccontextmanager
async def _transaction(db: Database) -> AsyncIterator[Async]:
    """A transaction on a connection of the engine, or in a session. What an outage raises becomes `Unavailable`, and so
    does whatever fails before the transaction has begun: no record is to blame. The handler's own errors pass, among
    them those of other servers."""
    began = False
    try:
        with ExitStack() as to_the_end:
            async with _ends_in_time(db.begin()) as where:
                # A session connects with its first statement; a failure to do so must not look like the handler's.
                connection = await where.connection() if isinstance(db, async_sessionmaker) else where
                to_the_end.enter_context(await _cancelled_in_time(connection))
                # Its mark would be committed, and what the handler did afterwards be lost.
                kept = KeptOpen(connection, _ENDED)
                began = True
                try:
                    yield where
                    kept.require_open()
                    await _refuse_aborted(connection)
                finally:
                    kept.let_go()
    except asyncio.CancelledError as cancelled:
        if not began:
            hangs(cancelled, "the begin of a transaction")
        raise
    except Exception as error:
        if not began and not isinstance(error, QuiesceError):
            raise _away(error) from error
        meaning = _meaning(error)
        if meaning is None:
            raise
        raise meaning from error


@asynccontextmanager
async def _ends_in_time(transaction: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    """The same, and after a cancel it has a moment to roll back; then SQLAlchemy gives the connection up."""
    where = await transaction.__aenter__()
    try:
        yield where
    except Exception as error:
        await transaction.__aexit__(type(error), error, error.__traceback__)
        raise
    except BaseException as error:
        try:
            async with asyncio.timeout(ROLLBACK_BOUND):
                await transaction.__aexit__(type(error), error, error.__traceback__)
        except TimeoutError:
            hangs(error, "a rollback")
        raise
    else:
        await transaction.__aexit__(None, None, None)


async def _cancelled_in_time(connection: AsyncConnection) -> AbstractContextManager[None]:
    """Amid a statement psycopg answers a cancel by asking the server to end it, and waits ten seconds for that."""
    if not connection.dialect.driver.startswith("psycopg"):
        return nullcontext()
    driver = (await connection.get_raw_connection()).driver_connection
    pgconn = getattr(driver, "pgconn", None)
    return cancelled_again(lambda: pgconn is not None and pgconn.transaction_status == _ACTIVE, hangs)


async def _refuse_aborted(connection: AsyncConnection) -> None:
    """The server answers the commit of an aborted transaction by a rollback, which no driver takes for an error."""
    if connection.dialect.driver.startswith("psycopg"):
        pgconn = getattr((await connection.get_raw_connection()).driver_connection, "pgconn", None)
        if pgconn is not None and pgconn.transaction_status == _IN_ERROR:
            raise TransactionAborted(SWALLOWED)
        return
    try:
        # Asyncpg does not hand out the transaction's state, so it costs a round trip to know.
        await connection.exec_driver_sql("SELECT 1")
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _ABORTED:
            raise
        raise TransactionAborted(SWALLOWED) from error


def _away(error: Exception) -> Unavailable:
    return away(error.orig if isinstance(error, DBAPIError) and error.orig is not None else error)


def _meaning(error: Exception) -> Unavailable | None:
    if isinstance(error, DBAPIError) and error.orig is not None:
        return meaning_of(error.orig, lost=error.connection_invalidated)
    return meaning_of(error)
