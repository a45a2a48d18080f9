"""The transaction of a request with an idempotency key, through asyncpg."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any

import asyncpg

from quiesce.errors import TransactionConflict, Unavailable
from quiesce.inbox.key_transaction import Isolation
from quiesce.inbox.schema_steps import schema_missing
from quiesce.postgres.connections import CONNECTION_LOST
from quiesce.postgres.driver import Pool, Proxy

log = logging.getLogger("quiesce.idempotency")

_GOODBYE = 5.0
"""Seconds for a rollback, or for giving a connection back."""


class PoolTransaction:
    """Implements the port `KeyTransaction`."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._connection: Proxy | None = None
        self._transaction: Any = None

    async def begin(self, within: float, isolation: Isolation | None) -> None:
        try:
            with _in_our_words():
                self._connection = await self._pool.acquire(timeout=within)
        except TimeoutError as error:
            raise Unavailable(f"the pool had no connection for a request within {within:g} s") from error
        with _in_our_words():
            transaction = self._connection.transaction(isolation=isolation)
            await transaction.start()
        self._transaction = transaction

    async def row(self, sql: str, *values: Any) -> Mapping[str, Any] | None:
        assert self._connection is not None
        with _in_our_words():
            return await self._connection.fetchrow(sql, *values)

    def savepoint(self) -> AbstractAsyncContextManager[Proxy]:
        return self._savepoint()

    async def commit(self) -> None:
        transaction, self._transaction = self._transaction, None
        try:
            with _in_our_words():
                await transaction.commit()
        finally:
            await self._give_back()

    async def roll_back(self) -> None:
        transaction, self._transaction = self._transaction, None
        try:
            if transaction is not None:
                # At the latest the server rolls back when it notices the end of the connection.
                with suppress(Exception):
                    async with asyncio.timeout(_GOODBYE):
                        await transaction.rollback()
        finally:
            # Also when it is cancelled here once more: a connection that is not given back is lost to its pool.
            await self._give_back()

    @asynccontextmanager
    async def _savepoint(self) -> Any:
        connection = self._connection
        assert connection is not None
        async with connection.transaction():
            yield connection

    async def _give_back(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await self._pool.release(connection, timeout=_GOODBYE)
        except Exception as error:  # noqa: BLE001 - whatever it is, the pool makes another one
            log.debug("a connection could not be given back: %s", error)
            with suppress(Exception):
                connection.terminate()


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Raises an error of ours for what the database says, where ours says more."""
    try:
        yield
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        if "idempotency_key" not in str(error):
            raise
        raise schema_missing(str(error)) from error
    except TimeoutError:
        raise
    except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError) as error:
        raise TransactionConflict(f"another transaction was in the way: {_one_line(error)}") from error
    except CONNECTION_LOST as error:
        raise Unavailable(f"the database was lost in the middle of a request: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
