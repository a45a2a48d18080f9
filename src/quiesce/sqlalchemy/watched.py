"""Every connection an engine has made, and who holds which: what `dispose` does not know."""

import asyncio
import contextlib
import inspect
import os
import socket
import sys
from collections.abc import Awaitable, Iterator
from types import FrameType
from typing import Any, cast

from sqlalchemy import Engine, event

from quiesce.errors import IntakeClosed
from quiesce.holders import Holders


class Watched:
    """Listens to an engine's pool. Any thread may use the engine meanwhile."""

    def __init__(self, engine: Engine) -> None:
        self.holders = Holders("sqlalchemy", "greenlet", "quiesce.sqlalchemy")
        self._made: dict[int, Any] = {}
        self._over = False
        event.listen(engine, "do_connect", self._before_connect)
        event.listen(engine, "connect", self._connected)
        event.listen(engine, "checkout", self._taken)
        event.listen(engine, "checkin", self._given_back)

    def shut(self) -> None:
        """From here on nothing can be taken: an engine that was disposed would connect anew."""
        self._over = True

    def open(self) -> list[Any]:
        """The drivers' own connections that are not closed."""
        return [connection for connection in list(self._made.values()) if not _closed(connection)]

    async def interrupt(self, seconds: float) -> None:
        """Has the server give up what still runs on the open connections of an async driver, in at most so long."""
        asked = [
            asyncio.ensure_future(asking) for c in self.open() if (asking := _interruption(c, seconds)) is not None
        ]
        if asked:
            _, late = await asyncio.wait(asked, timeout=seconds)
            for asking in late:
                asking.cancel()
            # An answer that says "no" changes nothing: they are cut next.
            await asyncio.gather(*asked, return_exceptions=True)

    def interrupt_sync(self, seconds: float) -> None:
        """The same for a driver that blocks. Run it in a thread: some know no limit."""
        for connection in self.open():
            cancel = getattr(connection, "cancel_safe", None)
            with contextlib.suppress(Exception):
                cancel(timeout=seconds) if cancel is not None else connection.cancel()

    def cut(self) -> None:
        """Ends every connection that is open, whoever holds it. Lets none be made afterwards."""
        self.shut()
        for connection in self.open():
            _cut(connection)

    def _before_connect(self, *_: object) -> None:
        self._refuse()

    def _connected(self, adapted: Any, record: object) -> None:
        if len(self._made) > 1000:
            # Closed long ago. A pool has tens of connections, so this is rare.
            self._made = {id(connection): connection for connection in self.open()}
        driver = getattr(adapted, "driver_connection", adapted)
        self._made[id(driver)] = driver

    def _taken(self, adapted: Any, record: object, proxy: object) -> None:
        self._refuse()
        driver = getattr(adapted, "driver_connection", adapted)
        self.holders.took(id(record), _process(driver), _outside())

    def _given_back(self, adapted: Any, record: object) -> None:
        self.holders.gave_back(id(record))
        if self._over and adapted is not None:
            # Given back too late, to a pool that was disposed: nobody would ever close it.
            with contextlib.suppress(Exception):
                adapted.close()

    def _refuse(self) -> None:
        if self._over:
            raise IntakeClosed("the engine is closed: the service has begun to close its resources")


def _outside() -> Iterator[FrameType]:
    """The stacks around ours: async code reaches the pool through greenlets, each with a stack of its own."""
    greenlet = sys.modules.get("greenlet")
    around = greenlet.getcurrent().parent if greenlet is not None else None
    while around is not None:
        if around.gr_frame is not None:
            yield around.gr_frame
        around = around.parent


def _interruption(connection: Any, seconds: float) -> Awaitable[object] | None:
    """psycopg cancels by request; asyncpg's `close` cancels what runs, says goodbye, and terminates when time is up."""
    if hasattr(connection, "cancel_safe"):
        return cast("Awaitable[object]", connection.cancel_safe(timeout=seconds))
    if hasattr(connection, "terminate") and inspect.iscoroutinefunction(connection.close):
        return cast("Awaitable[object]", connection.close(timeout=seconds))
    return None


def _closed(connection: Any) -> bool:
    asked = getattr(connection, "is_closed", None)
    return bool(asked() if callable(asked) else getattr(connection, "closed", False))


def _process(connection: Any) -> int | None:
    asked = getattr(connection, "get_server_pid", None)
    if callable(asked):
        return int(asked())
    number = getattr(getattr(connection, "info", None), "backend_pid", None)
    return None if number is None else int(number)


def _cut(connection: Any) -> None:
    terminate = getattr(connection, "terminate", None)
    if callable(terminate):
        terminate()
        return
    # Shut down and not closed: whoever waits on it wakes with an error, be it another thread, and no number of a file
    # is freed under its feet.
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)
