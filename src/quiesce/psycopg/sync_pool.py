"""`psycopg_pool.ConnectionPool` as a resource."""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from quiesce.blocking import BlockingCall
from quiesce.errors import Unavailable
from quiesce.holders import Holder, Holders
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Closed
from quiesce.psycopg.closing import CANCEL, left, new_holders, open_yet, told, until
from quiesce.psycopg.connecting import why_not_connected
from quiesce.psycopg.cutting import busy, cut
from quiesce.psycopg.pool_settings import Settings


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


class PoolResource:
    """A `Resource` whose product is a `psycopg_pool.ConnectionPool`. Its blocking calls run in threads of ours."""

    def __init__(self, settings: Settings) -> None:
        self.name = settings.name
        self.part = settings.part
        self._settings = settings
        self._pool: _NotingPool | None = None
        self._holders = new_holders()

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
        pool.holders, pool.made = self._holders, made
        try:
            pool.open(wait=True, timeout=settings.timeout)
        except PoolTimeout as error:
            pool.close(0)
            raise settings.timed_out(error) from None
        except BaseException:
            pool.close(0)
            raise
        return pool

    def holders(self) -> list[tuple[str, str]]:
        """Who has not given back a connection: the name of the task, and where it took it.

        Also while the pool closes and after that: the report is written last, and names who never let go.
        """
        return self._holders.tasks()

    async def close(self, deadline: Deadline) -> Closed:
        """Waits until every connection was given back and closed; past the deadline cuts those that are left.

        A thread that waits for an answer on one gets an error. See `AsyncPoolResource.close`.
        """
        pool, self._pool = self._pool, None
        if pool is None:
            return Closed()
        limit = max(0.01, left(deadline) / 2)
        closing = BlockingCall(f"quiesce closing {self.name}", lambda: pool.close(timeout=limit))
        held: list[Holder] = []
        try:
            await closing.wait(left(deadline))
            await until(lambda: not open_yet(pool.made), deadline)
            held = pool.holders.now()
            if closing.over and not open_yet(pool.made):
                await closing.result()
                return Closed()
            cancels = [
                BlockingCall(f"quiesce cancelling {self.name}", _canceller(connection))
                for connection in list(pool.made)
                if busy(connection)
            ]
            for cancel in cancels:
                await cancel.wait(CANCEL)
        finally:
            for connection in list(pool.made):
                cut(connection)
        return Closed(forced=True, detail=told(held))


def _canceller(connection: psycopg.Connection[Any]) -> Callable[[], None]:
    def cancel() -> None:
        with contextlib.suppress(psycopg.Error):
            connection.cancel_safe(timeout=CANCEL)

    return cancel
