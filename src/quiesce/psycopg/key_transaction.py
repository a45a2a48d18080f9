"""The transaction of a request with an idempotency key, through psycopg."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, IsolationLevel, Rollback, errors
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from quiesce.errors import TransactionConflict, Unavailable
from quiesce.inbox.key_transaction import Isolation
from quiesce.inbox.schema_steps import schema_missing

log = logging.getLogger("quiesce.idempotency")

_GOODBYE = 5.0
"""Seconds for a rollback."""

_MISSING = (errors.UndefinedTable, errors.UndefinedColumn)
_LOST = (psycopg.OperationalError, psycopg.InterfaceError, OSError)


class PoolTransaction:
    """Implements the port `KeyTransaction`."""

    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        self._pool = pool
        self._connection: AsyncConnection[Any] | None = None
        self._transaction: Any = None

    async def begin(self, within: float, isolation: Isolation | None) -> None:
        with _in_our_words():
            connection = self._connection = await self._pool.getconn(timeout=within)
            if isolation is not None:
                await connection.set_isolation_level(IsolationLevel[isolation.upper()])
            transaction = connection.transaction()
            await transaction.__aenter__()
        self._transaction = transaction

    async def row(self, sql: str, *values: Any) -> Mapping[str, Any] | None:
        assert self._connection is not None
        with _in_our_words():
            # A raw cursor takes the placeholders of PostgreSQL itself; the connection's own rows may be of any kind.
            async with AsyncRawCursor(self._connection, row_factory=dict_row) as cursor:
                await cursor.execute(sql, values)
                found: dict[str, Any] | None = await cursor.fetchone()
                return found

    def savepoint(self) -> AbstractAsyncContextManager[AsyncConnection[Any]]:
        return self._savepoint()

    async def commit(self) -> None:
        transaction, self._transaction = self._transaction, None
        try:
            with _in_our_words():
                await transaction.__aexit__(None, None, None)
        finally:
            await self._give_back()

    async def roll_back(self) -> None:
        transaction, self._transaction = self._transaction, None
        try:
            if transaction is not None:
                # At the latest the server rolls back when it notices the end of the connection.
                with suppress(Exception):
                    async with asyncio.timeout(_GOODBYE):
                        await transaction.__aexit__(Rollback, Rollback(transaction), None)
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
            if not connection.closed:
                # For this request alone.
                await connection.set_isolation_level(None)
        except Exception as error:  # noqa: BLE001 - whatever it is, the pool makes another one
            log.debug("a connection could not be put in order: %s", error)
            with suppress(Exception):
                await connection.close()
        finally:
            with suppress(Exception):
                await self._pool.putconn(connection)


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Raises an error of ours for what the database says, where ours says more."""
    try:
        yield
    except _MISSING as error:
        if "idempotency_key" not in str(error):
            raise
        raise schema_missing(str(error)) from error
    except PoolTimeout as error:
        raise Unavailable(f"the pool had no connection for a request: {_one_line(error)}") from error
    except (errors.SerializationFailure, errors.DeadlockDetected) as error:
        raise TransactionConflict(f"another transaction was in the way: {_one_line(error)}") from error
    except _LOST as error:
        raise Unavailable(f"the database was lost in the middle of a request: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
