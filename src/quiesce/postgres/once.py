"""Handlers whose effect is there once, on connections of asyncpg's pool."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

import asyncpg

from quiesce.cancelling import ROLLBACK_BOUND
from quiesce.errors import QuiesceError, SettingsError, TransactionAborted
from quiesce.inbox.event_id import event_id_of
from quiesce.inbox.once import SWALLOWED, EventId, Once, once_each
from quiesce.inbox.once import once_batch as once_in_batches
from quiesce.inbox.outage import away, hangs, meaning_of
from quiesce.postgres.commit_answer import CommitAnswer
from quiesce.postgres.connections import CONNECTION_LOST
from quiesce.postgres.driver import Pool, Proxy
from quiesce.postgres.inbox import inbox_entry, mark_entries


def once(
    pool: Pool, consumer: str, handler: Callable[..., Awaitable[object]], *, event_id: EventId = event_id_of
) -> Once:
    """A handler for `Consumer` that calls `handler(record, connection, *args)` for each event that is new.

    The connection comes from `pool`, with a transaction in which the event is marked as handled; what the handler
    writes through it is committed with the mark, or not at all. A duplicate is answered without the handler.

    While the database is away it raises `Unavailable`, so that the consumer holds the record and counts no attempt.

    Args:
        consumer: who handles; see `inbox_entry`. It must stay the same for ever.
        event_id: finds the id of a record; by default in its header `id`, where the outbox's relay writes it.

    Raises:
        SettingsError: the consumer has no name, or `pool` is no pool of asyncpg.
    """
    return once_each(_transactions(pool), inbox_entry, consumer, handler, event_id)


def once_batch(
    pool: Pool, consumer: str, handler: Callable[..., Awaitable[object]], *, event_id: EventId = event_id_of
) -> Once:
    """A batch handler that calls `handler(records, connection, *args)` with the records whose events are new.

    They are in their order; of an event that came twice the first one is there. All of them are marked by one
    statement. Nothing is called where none is new. For everything else see `once`.
    """
    return once_in_batches(_transactions(pool), mark_entries, consumer, handler, event_id)


def _transactions(pool: Pool) -> "partial[Any]":
    if not isinstance(pool, asyncpg.Pool):
        raise SettingsError(f"inbox: pool: got {type(pool).__name__}, takes a pool of asyncpg")
    return partial(_transaction, pool)


@asynccontextmanager
async def _transaction(pool: Pool) -> AsyncIterator[Proxy]:
    """A transaction on a connection of the pool. What an outage raises becomes `Unavailable`, and so does whatever
    fails before the transaction has begun: no record is to blame. The handler's own errors pass, among them those of
    other servers."""
    began = False
    try:
        async with pool.acquire() as connection:
            transaction = connection.transaction()
            answer = CommitAnswer(transaction)
            with _cut_if_torn(connection):
                await transaction.start()
            began = True
            try:
                yield connection
                if not answer.heard:
                    await _refuse_aborted(connection)
            except BaseException as error:
                await _roll_back(connection, transaction, error)
                raise
            try:
                with _cut_if_torn(connection):
                    await transaction.commit()
            except Exception as error:
                # Whether it is committed may be unknown: the next try meets the mark, or does not.
                if (meaning := meaning_of(error, lost=_is_gone(connection))) is not None:
                    raise meaning from error
                raise
            answer.require_commit()
    except asyncio.CancelledError as cancelled:
        if not began:
            hangs(cancelled, "the begin of a transaction")
        raise
    except Exception as error:
        if began or isinstance(error, QuiesceError):
            raise
        raise away(error) from error


async def _refuse_aborted(connection: Proxy) -> None:
    """For an asyncpg whose transactions do not go by `CommitAnswer`: it costs a round trip to know."""
    try:
        await connection.execute("SELECT 1")
    except asyncpg.InFailedSQLTransactionError as error:
        raise TransactionAborted(SWALLOWED) from error


async def _roll_back(connection: Proxy, transaction: Any, error: BaseException) -> None:
    try:
        with _cut_if_torn(connection):
            # Without a bound for an exception of the handler's: whoever waits for it may cancel.
            async with asyncio.timeout(None if isinstance(error, Exception) else ROLLBACK_BOUND):
                await transaction.rollback()
    except CONNECTION_LOST as lost:
        if isinstance(error, Exception):
            raise away(lost) from error
        hangs(error, "a rollback")
        _cut(connection)
    if isinstance(error, Exception) and (meaning := meaning_of(error, lost=_is_gone(connection))) is not None:
        raise meaning from error


@contextmanager
def _cut_if_torn(connection: Proxy) -> Iterator[None]:
    """Cancelled amid a statement of ours, the connection is cut: giving it back would wait for the server's word."""
    try:
        yield
    except asyncio.CancelledError:
        _cut(connection)
        raise


def _cut(connection: Proxy) -> None:
    # One that was given back, or cut by the driver, takes no call any more.
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


def _is_gone(connection: Proxy) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True
