"""psycopg's pools, as resources that close in time."""

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from quiesce.blocking import BlockingCall
from quiesce.errors import SettingsError, Unavailable
from quiesce.holders import Holder, Holders, detail
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.psycopg.connecting import shown, why_not_connected
from quiesce.psycopg.cutting import busy, cut

_LOOK = 0.005
"""Seconds between two looks whether everything was given back: a pool tells nobody."""

_CANCEL = 0.2
"""Seconds for the server to take the cancel of what still runs, past the deadline."""

_PROBES = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
"""A connection whose server has vanished without a word is noticed within half a minute."""


def open_pool(
    dsn: str,
    *,
    name: str = "postgres",
    min_size: int = 1,
    max_size: int = 10,
    part: Part = Part.POOLS,
    connect_timeout: float = 5.0,
    **settings: Any,
) -> "AsyncPoolResource":
    """A `psycopg_pool.AsyncConnectionPool` for `await s.open(open_pool(dsn))`: opened first, closed last.

    `connect_timeout` bounds the opening of a connection and of the pool; seconds. `settings` go to the pool as they
    are. `name` stands in reports and messages.

    Raises:
        SettingsError: the sizes do not fit together, or the DSN cannot be read.
    """
    return AsyncPoolResource(_Settings(dsn, name, min_size, max_size, part, connect_timeout, settings))


def open_sync_pool(
    dsn: str,
    *,
    name: str = "postgres",
    min_size: int = 1,
    max_size: int = 10,
    part: Part = Part.POOLS,
    connect_timeout: float = 5.0,
    **settings: Any,
) -> "PoolResource":
    """A `psycopg_pool.ConnectionPool`, for code that runs in threads. For the rest see `open_pool`."""
    return PoolResource(_Settings(dsn, name, min_size, max_size, part, connect_timeout, settings))


class _Settings:
    """What both pools are made from."""

    def __init__(
        self,
        dsn: str,
        name: str,
        min_size: int,
        max_size: int,
        part: Part,
        connect_timeout: float,
        settings: dict[str, Any],
    ) -> None:
        if not 0 <= min_size <= max_size or max_size < 1:
            raise SettingsError(
                f"{name}: got min_size {min_size} and max_size {max_size}, takes 0 <= min_size <= max_size"
            )
        self.where = shown(dsn)
        self.dsn = dsn
        self.name = name
        self.part = part
        self.timeout = connect_timeout
        # libpq counts whole seconds, and takes less than two for two.
        own: dict[str, Any] = dict(settings.pop("kwargs", None) or {})
        self.options: dict[str, Any] = {"connect_timeout": max(2, round(connect_timeout)), **_PROBES, **own}
        self.pool: dict[str, Any] = {
            "min_size": min_size,
            "max_size": max_size,
            "name": name,
            **settings,
            "kwargs": self.options,
            "open": False,
        }

    def timed_out(self, error: PoolTimeout) -> Unavailable:
        return Unavailable(f"{self.name}: {self.where} gave no {self.pool['min_size']} connection(s) in time: {error}")


class _NotingAsyncPool(AsyncConnectionPool[Any]):
    """Notes who takes a connection and who gives it back. The pool has hooks for the first only."""

    holders: Holders
    made: "weakref.WeakSet[psycopg.AsyncConnection[Any]]"

    async def getconn(self, timeout: float | None = None) -> psycopg.AsyncConnection[Any]:
        connection: psycopg.AsyncConnection[Any] = await super().getconn(timeout)
        self.holders.took(id(connection), connection.info.backend_pid)
        return connection

    async def putconn(self, conn: psycopg.AsyncConnection[Any]) -> None:
        try:
            await super().putconn(conn)
        finally:
            self.holders.gave_back(id(conn))


class _NotingPool(ConnectionPool[Any]):
    """The same for threads."""

    holders: Holders
    made: "weakref.WeakSet[psycopg.Connection[Any]]"

    def getconn(self, timeout: float | None = None) -> psycopg.Connection[Any]:
        connection: psycopg.Connection[Any] = super().getconn(timeout)
        self.holders.took(id(connection), connection.info.backend_pid)
        return connection

    def putconn(self, conn: psycopg.Connection[Any]) -> None:
        try:
            super().putconn(conn)
        finally:
            self.holders.gave_back(id(conn))


class AsyncPoolResource:
    """A `Resource` whose product is a `psycopg_pool.AsyncConnectionPool`."""

    def __init__(self, settings: _Settings) -> None:
        self.name = settings.name
        self.part = settings.part
        self._settings = settings
        self._pool: _NotingAsyncPool | None = None

    async def open(self) -> AsyncConnectionPool[Any]:
        """Connects `min_size` connections.

        Raises:
            Unavailable: the server cannot be reached, is starting up, or has no connection left.
            SettingsError: the server refuses the user or has no such database.
        """
        settings = self._settings
        try:
            # The pool itself tries again and again, and only tells that time is over: ask once, for the reason.
            async with asyncio.timeout(settings.timeout):
                probe = await psycopg.AsyncConnection.connect(settings.dsn, **settings.options)
                await probe.close()
        except psycopg.Error as error:
            raise why_not_connected(error, self.name, settings.where) from None
        except TimeoutError:
            raise Unavailable(f"{self.name}: {settings.where} did not answer in time") from None
        made: weakref.WeakSet[psycopg.AsyncConnection[Any]] = weakref.WeakSet()
        configure = settings.pool.get("configure")

        async def note(connection: psycopg.AsyncConnection[Any]) -> None:
            made.add(connection)
            if configure is not None:
                await configure(connection)

        pool = _NotingAsyncPool(settings.dsn, **{**settings.pool, "configure": note})
        pool.holders, pool.made = _holders(), made
        try:
            await pool.open(wait=True, timeout=settings.timeout)
        except PoolTimeout as error:
            await pool.close(0)
            raise settings.timed_out(error) from None
        except BaseException:
            await pool.close(0)
            raise
        self._pool = pool
        return pool

    async def close(self, deadline: Deadline) -> Closed:
        """Waits until every connection was given back and closed; past the deadline cuts those that are left.

        The pool's own `close` waits for nobody and leaves what is held open. `detail` names who held them. What
        still runs on the server is cancelled. Safe to call twice.
        """
        pool, self._pool = self._pool, None
        if pool is None:
            return Closed()
        # Half of the time for its workers: it closes the idle ones only after them.
        held: list[Holder] = []
        closing = asyncio.ensure_future(pool.close(timeout=max(0.01, _left(deadline) / 2)))
        try:
            await asyncio.wait({closing}, timeout=_left(deadline))
            await _until(lambda: not _open_yet(pool.made), deadline)
            held = pool.holders.now()
            if closing.done() and not _open_yet(pool.made):
                closing.result()
                return Closed()
            running = [connection.cancel_safe(timeout=_CANCEL) for connection in pool.made if busy(connection)]
            await asyncio.gather(*running, return_exceptions=True)
        finally:
            # Also when we are cancelled.
            closing.cancel()
            for connection in list(pool.made):
                await _cut_async(connection)
        return Closed(forced=True, detail=_told(held))


class PoolResource:
    """A `Resource` whose product is a `psycopg_pool.ConnectionPool`. Its blocking calls run in threads of ours."""

    def __init__(self, settings: _Settings) -> None:
        self.name = settings.name
        self.part = settings.part
        self._settings = settings
        self._pool: _NotingPool | None = None

    async def open(self) -> ConnectionPool[Any]:
        """Connects `min_size` connections.

        Raises:
            Unavailable: the server cannot be reached, is starting up, or has no connection left.
            SettingsError: the server refuses the user or has no such database.
        """
        opening = BlockingCall(f"quiesce opening {self.name}", self._connect)
        # libpq's limit is the one that counts; ours stands behind it, for both steps.
        if not await opening.wait(2 * self._settings.timeout + 2.0):
            raise Unavailable(f"{self.name}: {self._settings.where} did not answer in time")
        self._pool = await opening.result()
        return self._pool

    def _connect(self) -> _NotingPool:
        settings = self._settings
        try:
            psycopg.connect(settings.dsn, **settings.options).close()
        except psycopg.Error as error:
            raise why_not_connected(error, self.name, settings.where) from None
        made: weakref.WeakSet[psycopg.Connection[Any]] = weakref.WeakSet()
        configure = settings.pool.get("configure")

        def note(connection: psycopg.Connection[Any]) -> None:
            made.add(connection)
            if configure is not None:
                configure(connection)

        pool = _NotingPool(settings.dsn, **{**settings.pool, "configure": note})
        pool.holders, pool.made = _holders(), made
        try:
            pool.open(wait=True, timeout=settings.timeout)
        except PoolTimeout as error:
            pool.close(0)
            raise settings.timed_out(error) from None
        except BaseException:
            pool.close(0)
            raise
        return pool

    async def close(self, deadline: Deadline) -> Closed:
        """Waits until every connection was given back and closed; past the deadline cuts those that are left.

        A thread that waits for an answer on one gets an error. See `AsyncPoolResource.close`.
        """
        pool, self._pool = self._pool, None
        if pool is None:
            return Closed()
        limit = max(0.01, _left(deadline) / 2)
        closing = BlockingCall(f"quiesce closing {self.name}", lambda: pool.close(timeout=limit))
        held: list[Holder] = []
        try:
            await closing.wait(_left(deadline))
            await _until(lambda: not _open_yet(pool.made), deadline)
            held = pool.holders.now()
            if closing.over and not _open_yet(pool.made):
                await closing.result()
                return Closed()
            cancels = [
                BlockingCall(f"quiesce cancelling {self.name}", _canceller(connection))
                for connection in list(pool.made)
                if busy(connection)
            ]
            for cancel in cancels:
                await cancel.wait(_CANCEL)
        finally:
            for connection in list(pool.made):
                cut(connection)
        return Closed(forced=True, detail=_told(held))


def _holders() -> Holders:
    return Holders("psycopg_pool", "psycopg", "quiesce.psycopg")


def _canceller(connection: psycopg.Connection[Any]) -> Callable[[], None]:
    def cancel() -> None:
        with contextlib.suppress(psycopg.Error):
            connection.cancel_safe(timeout=_CANCEL)

    return cancel


async def _cut_async(connection: psycopg.AsyncConnection[Any]) -> None:
    if busy(connection):
        # Its task waits on the socket, and the loop for it: it must wake before the socket can be closed.
        cut(connection)
    else:
        await connection.close()


def _open_yet(made: "weakref.WeakSet[Any]") -> bool:
    """Whether a connection is open: held by somebody, or in the hands of the pool's own workers."""
    return any(not connection.closed for connection in list(made))


def _left(deadline: Deadline) -> float:
    return deadline.remaining(time.monotonic())


async def _until(holds: Callable[[], bool], deadline: Deadline) -> None:
    while not holds():
        left = _left(deadline)
        if left <= 0:
            return
        await asyncio.sleep(min(_LOOK, left))


def _told(held: list[Holder]) -> str:
    return detail(held) if held else "the server did not answer while connections were being closed"
