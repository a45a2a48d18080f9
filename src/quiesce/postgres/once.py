"""Handlers whose effect is there once, on connections of asyncpg's pool."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg

from quiesce.errors import SettingsError
from quiesce.inbox.event_id import event_id_of
from quiesce.inbox.once import EventId, Once, once_each
from quiesce.inbox.once import once_batch as once_in_batches
from quiesce.inbox.outage import away, meaning_of
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
    """A transaction on a connection of the pool. What an outage raises becomes `Unavailable`; the handler's own errors
    pass, among them those of other servers."""
    taken = False
    try:
        async with pool.acquire() as connection:
            taken = True
            transaction = connection.transaction()
            try:
                await transaction.start()
            except CONNECTION_LOST as error:
                raise away(error) from error
            try:
                yield connection
            except BaseException as error:
                await _roll_back(connection, transaction, error)
                raise
            try:
                await transaction.commit()
            except Exception as error:
                # Whether it is committed may be unknown: the next try meets the mark, or does not.
                if (meaning := meaning_of(error, lost=connection.is_closed())) is not None:
                    raise meaning from error
                raise
    except (OSError, asyncpg.PostgresError) as error:
        meaning = None if taken else meaning_of(error, lost=isinstance(error, OSError))
        if meaning is None:
            raise
        raise meaning from error


async def _roll_back(connection: Proxy, transaction: Any, error: BaseException) -> None:
    try:
        await transaction.rollback()
    except CONNECTION_LOST as lost:
        if isinstance(error, Exception):
            raise away(lost) from error
    if isinstance(error, Exception) and (meaning := meaning_of(error, lost=connection.is_closed())) is not None:
        raise meaning from error
