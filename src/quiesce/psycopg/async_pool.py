"""`psycopg_pool.AsyncConnectionPool` as a resource."""

import asyncio
import weakref
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from quiesce.errors import Unavailable
from quiesce.holders import Holder, Holders
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Closed
from quiesce.psycopg.closing import CANCEL, left, new_holders, open_yet, told, until
from quiesce.psycopg.connecting import why_not_connected
from quiesce.psycopg.cutting import busy, cut
from quiesce.psycopg.pool_settings import Settings


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


class AsyncPoolResource:
    """A `Resource` whose product is a `psycopg_pool.AsyncConnectionPool`."""

    def __init__(self, settings: Settings) -> None:
        self.name = settings.name
        self.part = settings.part
        self._settings = settings
        self._pool: _NotingAsyncPool | None = None
        self._holders = new_holders()

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
        pool.holders, pool.made = self._holders, made
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

    def holders(self) -> list[tuple[str, str]]:
        """Who has not given back a connection: the name of the task, and where it took it.

        Also while the pool closes and after that: the report is written last, and names who never let go.
        """
        return self._holders.tasks()

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
        closing = asyncio.ensure_future(pool.close(timeout=max(0.01, left(deadline) / 2)))
        try:
            await asyncio.wait({closing}, timeout=left(deadline))
            await until(lambda: not open_yet(pool.made), deadline)
            held = pool.holders.now()
            if closing.done() and not open_yet(pool.made):
                closing.result()
                return Closed()
            running = [connection.cancel_safe(timeout=CANCEL) for connection in pool.made if busy(connection)]
            await asyncio.gather(*running, return_exceptions=True)
        finally:
            # Also when we are cancelled.
            closing.cancel()
            for connection in list(pool.made):
                await _cut_async(connection)
        return Closed(forced=True, detail=told(held))


async def _cut_async(connection: psycopg.AsyncConnection[Any]) -> None:
    if busy(connection):
        # Its task waits on the socket, and the loop for it: it must wake before the socket can be closed.
        cut(connection)
    else:
        await connection.close()
