"""Handlers whose effect is there once, on connections of psycopg's pool."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

from quiesce.cancelling import cancelled_again
from quiesce.errors import QuiesceError, SettingsError, TransactionAborted
from quiesce.inbox.event_id import event_id_of
from quiesce.inbox.once import SWALLOWED, EventId, Once, once_each
from quiesce.inbox.once import once_batch as once_in_batches
from quiesce.inbox.outage import away, hangs, meaning_of
from quiesce.psycopg.inbox import inbox_entry, mark_entries_async

_AnyPool = AsyncConnectionPool[Any]


def once(
    pool: _AnyPool, consumer: str, handler: Callable[..., Awaitable[object]], *, event_id: EventId = event_id_of
) -> Once:
    """A handler for `Consumer` that calls `handler(record, connection, *args)` for each event that is new.

    The connection comes from `pool`, with a transaction in which the event is marked as handled; what the handler
    writes through it is committed with the mark, or not at all. A duplicate is answered without the handler.

    While the database is away it raises `Unavailable`, so that the consumer holds the record and counts no attempt.

    Args:
        consumer: who handles; see `inbox_entry`. It must stay the same for ever.
        event_id: finds the id of a record; by default in its header `id`, where the outbox's relay writes it.

    Raises:
        SettingsError: the consumer has no name, or `pool` is no `AsyncConnectionPool`.
    """
    return once_each(_transactions(pool), _mark, consumer, handler, event_id)


def once_batch(
    pool: _AnyPool, consumer: str, handler: Callable[..., Awaitable[object]], *, event_id: EventId = event_id_of
) -> Once:
    """A batch handler that calls `handler(records, connection, *args)` with the records whose events are new.

    They are in their order; of an event that came twice the first one is there. All of them are marked by one
    statement. Nothing is called where none is new. For everything else see `once`.
    """
    return once_in_batches(_transactions(pool), mark_entries_async, consumer, handler, event_id)


async def _mark(connection: psycopg.AsyncConnection[Any], consumer: str, event_id: str) -> bool:
    return await inbox_entry(connection, consumer, event_id)


def _transactions(pool: _AnyPool) -> "partial[Any]":
    if not isinstance(pool, AsyncConnectionPool):
        raise SettingsError(f"inbox: pool: got {type(pool).__name__}, takes psycopg's AsyncConnectionPool")
    return partial(_transaction, pool)


@asynccontextmanager
async def _transaction(pool: _AnyPool) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A transaction on a connection of the pool. What an outage raises becomes `Unavailable`, and so does whatever
    fails before the transaction has begun: no record is to blame. The handler's own errors pass, among them those of
    other servers."""
    connection: psycopg.AsyncConnection[Any] | None = None
    began = False
    try:
        async with pool.connection() as connection:
            pgconn = connection.pgconn
            # Amid a statement psycopg answers a cancel by asking the server to end it, and waits ten seconds for that.
            with cancelled_again(lambda: pgconn.transaction_status == TransactionStatus.ACTIVE, hangs):
                async with connection.transaction():
                    began = True
                    yield connection
                    if pgconn.transaction_status == TransactionStatus.INERROR:
                        raise TransactionAborted(SWALLOWED)
    except asyncio.CancelledError as cancelled:
        if not began:
            hangs(cancelled, "the begin of a transaction")
        raise
    except Exception as error:
        if not began and not isinstance(error, QuiesceError):
            raise away(error) from error
        if connection is None or (meaning := meaning_of(error, lost=connection.closed)) is None:
            raise
        raise meaning from error
