"""The transaction of a request with an idempotency key, through SQLAlchemy: on a connection, or in a session."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import cache
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker

from quiesce.errors import TransactionConflict, Unavailable
from quiesce.inbox.key_transaction import Isolation
from quiesce.inbox.outage import says_away
from quiesce.inbox.schema_steps import schema_missing
from quiesce.sqlalchemy.placeholders import named

log = logging.getLogger("quiesce.idempotency")

_GOODBYE = 5.0
"""Seconds for a rollback, or for giving a connection back."""

_MISSING = ("42P01", "42703")
_CONFLICTS = ("40001", "40P01")


class EngineTransaction:
    """Implements the port `KeyTransaction`. With a sessionmaker the handler writes by a session."""

    def __init__(self, db: "AsyncEngine | async_sessionmaker[Any]") -> None:
        self._db = db
        self._where: AsyncConnection | AsyncSession | None = None

    async def begin(self, within: float, isolation: Isolation | None) -> None:
        options: dict[str, Any] = {}
        if isolation is not None:
            options["isolation_level"] = isolation.replace("_", " ").upper()
        try:
            with _in_our_words():
                async with asyncio.timeout(within):
                    await self._connect(options)
        except TimeoutError as error:
            raise Unavailable(f"the engine had no connection for a request within {within:g} s") from error

    async def _connect(self, options: dict[str, Any]) -> None:
        if isinstance(self._db, async_sessionmaker):
            session = self._where = self._db()
            await session.begin()
            await session.connection(execution_options=options)
            return
        connection = self._where = self._db.connect()
        await connection.start()
        await connection.execution_options(**options)
        await connection.begin()

    async def row(self, sql: str, *values: Any) -> Mapping[str, Any] | None:
        where = self._where
        assert where is not None
        with _in_our_words():
            # Not through the session: that would flush what the handler has in it, and count as its use.
            connection = await where.connection() if isinstance(where, AsyncSession) else where
            result = await connection.execute(_statement(sql), {f"p{n}": value for n, value in enumerate(values, 1)})
            found = result.mappings().first()
            return None if found is None else dict(found)

    def savepoint(self) -> "AbstractAsyncContextManager[AsyncConnection | AsyncSession]":
        return self._savepoint()

    async def commit(self) -> None:
        assert self._where is not None
        try:
            with _in_our_words():
                await self._where.commit()
        finally:
            await self._give_back()

    async def roll_back(self) -> None:
        await self._give_back()

    @asynccontextmanager
    async def _savepoint(self) -> Any:
        where = self._where
        assert where is not None
        async with where.begin_nested():
            yield where

    async def _give_back(self) -> None:
        where, self._where = self._where, None
        if where is None:
            return
        try:
            async with asyncio.timeout(_GOODBYE):
                # What is not committed is rolled back by that.
                await where.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine makes another one
            log.debug("a connection could not be given back: %s", error)
            with suppress(Exception):
                await where.invalidate()


@cache
def _statement(sql: str) -> TextClause:
    return text(named(sql))


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Raises an error of ours for what the database says, where ours says more."""
    try:
        yield
    except TimeoutError:
        raise
    except DBAPIError as error:
        cause = error.orig if error.orig is not None else error
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        told = " ".join(str(cause).split()) or type(cause).__name__
        if state in _MISSING and "idempotency_key" in told:
            raise schema_missing(told) from error
        if state in _CONFLICTS:
            raise TransactionConflict(f"another transaction was in the way: {told}") from error
        # While it connects, a driver may give no code.
        if error.connection_invalidated or says_away(cause) or not state:
            raise Unavailable(f"the database was lost in the middle of a request: {told}") from error
        raise
    except (PoolTimeout, OSError) as error:
        raise Unavailable(f"the database cannot be reached for a request: {' '.join(str(error).split())}") from error
