"""The transaction of a request with an idempotency key, through SQLAlchemy: on a connection, or in a session."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import cache
from typing import Any

from sqlalchemy import TextClause, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from quiesce.errors import SettingsError, TransactionConflict, Unavailable
from quiesce.inbox.key_transaction import Isolation
from quiesce.inbox.outage import says_away
from quiesce.inbox.schema_steps import schema_missing
from quiesce.sqlalchemy.enqueue import commits_by_itself
from quiesce.sqlalchemy.kept_open import KeptOpen, engine_of, join
from quiesce.sqlalchemy.placeholders import named

log = logging.getLogger("quiesce.idempotency")

_GOODBYE = 5.0
"""Seconds for a rollback, or for giving a connection back."""

_MISSING = ("42P01", "42703")
_CONFLICTS = ("40001", "40P01")

_ENDED = (
    "the transaction of this request is committed with its answer, and its handler has ended it: nothing of it is "
    "committed. Leave commit and rollback out, or write by a session, where they are savepoints"
)
_TORN = (
    "a block of this request's transaction has committed or rolled back its session by itself and then failed: what it "
    "wrote before that cannot be told from other blocks' writes, so nothing of the request is committed"
)


class EngineTransaction:
    """Implements the port `KeyTransaction`. With a sessionmaker the handler writes by a session.

    The handler cannot commit it: on a connection that is refused, and a session's transactions are savepoints in it.
    """

    def __init__(self, db: "AsyncEngine | async_sessionmaker[Any]") -> None:
        self._db = db
        self._connection: AsyncConnection | None = None
        self._session: AsyncSession | None = None
        self._kept: KeptOpen | None = None
        self._committed = False
        """Whether the handler has committed its session in this block."""
        self._torn = False

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
        engine = self._db
        if isinstance(engine, async_sessionmaker):
            session = self._session = engine(join_transaction_mode="create_savepoint")
            engine = engine_of(session)
        connection = self._connection = engine.connect()
        await connection.start()
        await connection.execution_options(**options)
        if connection.sync_connection is not None and commits_by_itself(connection.sync_connection):
            raise SettingsError("IdempotencyKeys: the engine is in AUTOCOMMIT, takes one whose transactions last")
        await connection.begin()
        self._kept = KeptOpen(connection, _ENDED)
        if self._session is not None:
            join(self._session, connection)
            event.listen(self._session.sync_session, "after_commit", self._note_commit)

    async def row(self, sql: str, *values: Any) -> Mapping[str, Any] | None:
        self._refuse_ended()
        assert self._connection is not None
        with _in_our_words():
            # Not through the session: that would flush what the handler has in it, and count as its use.
            given = {f"p{number}": value for number, value in enumerate(values, 1)}
            found = (await self._connection.execute(_statement(sql), given)).mappings().first()
            return None if found is None else dict(found)

    def savepoint(self) -> "AbstractAsyncContextManager[AsyncConnection | AsyncSession]":
        return self._on_connection() if self._session is None else self._in_session(self._session)

    async def commit(self) -> None:
        connection, kept = self._connection, self._kept
        assert connection is not None
        assert kept is not None
        try:
            with _in_our_words():
                if self._session is not None:
                    # What the handler has left in it after its blocks.
                    await _end(self._session)
                self._refuse_ended()
                kept.let_go()
                await connection.commit()
        finally:
            await self._give_back()

    async def roll_back(self) -> None:
        await self._give_back()

    def _refuse_ended(self) -> None:
        if self._kept is not None:
            self._kept.require_open()
        if self._torn:
            raise RuntimeError(_TORN)

    def _note_commit(self, session: Session) -> None:
        # Also of a savepoint of the handler's own, which says nothing.
        self._committed = self._committed or not session.in_nested_transaction()

    @asynccontextmanager
    async def _on_connection(self) -> Any:
        connection = self._connection
        assert connection is not None
        savepoint = await connection.begin_nested()
        try:
            yield connection
            self._refuse_ended()
            await savepoint.commit()
        except BaseException:
            await savepoint.close()
            raise

    @asynccontextmanager
    async def _in_session(self, session: AsyncSession) -> Any:
        """The savepoint is the session's own: it takes one with its first statement, and another one after a commit."""
        self._committed = False
        try:
            yield session
            self._refuse_ended()
            await _end(session)
        except BaseException:
            self._torn = self._torn or self._committed
            # Where the transaction has ended there is no savepoint to go back to.
            await (session.close() if self._kept is not None and self._kept.ended else session.rollback())
            raise

    async def _give_back(self) -> None:
        connection, self._connection = self._connection, None
        session, self._session = self._session, None
        if self._kept is not None:
            self._kept.let_go()
        try:
            if connection is not None:
                async with asyncio.timeout(_GOODBYE):
                    # What is not committed is rolled back by that.
                    await connection.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine makes another one
            log.debug("a connection could not be given back: %s", error)
            with suppress(Exception):
                assert connection is not None
                await connection.invalidate()
        finally:
            if session is not None:
                try:
                    async with asyncio.timeout(_GOODBYE):
                        # It may have connections of other engines.
                        await session.close()
                except Exception as error:  # noqa: BLE001 - whatever it is, its own connections are not ours to mend
                    log.debug("a session could not be closed: %s", error)


async def _end(session: AsyncSession) -> None:
    """Writes what waits in it and ends its savepoint. What it has loaded stays as it is: more than a savepoint is not
    over, and a handler makes its answer of that."""
    sync = session.sync_session
    expires, sync.expire_on_commit = sync.expire_on_commit, False
    try:
        await session.commit()
    finally:
        sync.expire_on_commit = expires


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
