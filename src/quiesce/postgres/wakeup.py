"""Waking a relay in another process by LISTEN and NOTIFY, away from every writer's commit.

A transaction that says NOTIFY waits at its commit for all others that do, so writers would queue up behind one another.
Here the writer's process says it afterwards, on a connection of its own and once for many commits. It is a hint:
lost, it costs the relay's idle interval of 0.1 s and nothing else.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from quiesce.errors import Unavailable
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed, Stop
from quiesce.postgres.connections import CONNECTION_LOST, RELAY, Connector, close_connection, open_connection
from quiesce.postgres.driver import Connection

logger = logging.getLogger("quiesce.postgres")

CHANNEL = "quiesce_outbox"

_GATHER = 0.001
"""Seconds in which further commits share a notification."""
_APART = 0.02
"""Seconds between two notifications, at least. A relay that was woken looks as often by itself for a while, so more of
them would cost writers and server much, and spare nobody a wait."""
_STATEMENT = 2.0
"""Seconds for one statement; no answer means that the connection is gone."""
_PROBE = 5.0
"""Seconds between two looks whether a silent connection still lives."""
_AGAIN = Backoff(first=0.1, ceiling=5.0)


class OutboxWaker:
    """The writers' side, a resource: `waker.nudge()` after a commit wakes the relays that listen.

    `nudge` never waits and never fails. Any thread may call it.
    """

    def __init__(self, dsn: str, *, name: str = "outbox-waker", connect_timeout: float = 5.0) -> None:
        self.name = name
        self.part = Part.POOLS
        self._dsn = dsn
        self._connect_timeout = connect_timeout
        self._connector = Connector(RELAY)
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> "OutboxWaker":
        """Connects.

        Raises:
            Unavailable: the server cannot be reached now.
            SettingsError: the DSN is wrong, or the server refuses the user.
        """
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._connection = await open_connection(self._connector, self._dsn, self.name, self._connect_timeout)
            self._task = asyncio.create_task(self._notify(), name=self.name)
        return self

    def nudge(self) -> None:
        """Says that something was committed. Without an effect while it is not open."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        try:
            same = asyncio.get_running_loop() is loop
        except RuntimeError:
            same = False
        if same:
            self._due.set()
        else:
            loop.call_soon_threadsafe(self._due.set)

    async def close(self, deadline: Deadline) -> Closed:
        """Says goodbye by `deadline`, or cuts. Safe to call twice."""
        task, self._task, self._loop = self._task, None, None
        if task is None:
            return Closed()
        task.cancel()
        await asyncio.wait({task}, timeout=deadline.remaining(time.monotonic()))
        connection, self._connection = self._connection, None
        if connection is None or connection.is_closed():
            return Closed()
        clean = await close_connection(connection, deadline.remaining(time.monotonic()))
        return Closed(forced=not clean, detail="" if clean else "the server did not answer the goodbye")

    async def _notify(self) -> None:
        failures = 0
        while True:
            await self._due.wait()
            await asyncio.sleep(_GATHER)
            self._due.clear()
            try:
                await self._say()
                failures = 0
                await asyncio.sleep(_APART)
            except Exception as error:  # noqa: BLE001 - a hint: whatever it is, as long as it lasts nobody is woken
                failures += 1
                wait = _AGAIN.wait(failures)
                expected = isinstance(error, (Unavailable, *CONNECTION_LOST))
                level = logging.INFO if expected else logging.WARNING
                logger.log(level, "%s: relays are not woken for %.1f s: %s", self.name, wait, error)
                await asyncio.sleep(wait)

    async def _say(self) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await open_connection(self._connector, self._dsn, self.name, self._connect_timeout)
        connection = self._connection
        try:
            async with asyncio.timeout(_STATEMENT):
                await connection.execute(f"NOTIFY {CHANNEL}")
        except BaseException:
            connection.terminate()
            raise


class OutboxWakeups:
    """The relay's side, a worker: `s.run(OutboxWakeups(dsn, relay.nudge))`.

    It calls `wake` for each notification, and once whenever it has connected, since something may have been missed.
    A connection that is lost, or does not answer a probe, is made anew with backoff. It takes a session of its own,
    and no transaction pooler in between: LISTEN belongs to a session.
    """

    def __init__(
        self, dsn: str, wake: Callable[[], object], *, name: str = "outbox-wakeups", connect_timeout: float = 5.0
    ) -> None:
        self.name = name
        self._dsn = dsn
        self._wake = wake
        self._connect_timeout = connect_timeout
        self._connector = Connector(RELAY)

    async def run(self, stop: Stop) -> None:
        failures = 0
        while not stop.requested:
            began = time.monotonic()
            try:
                await self._listen(stop)
            except (Unavailable, *CONNECTION_LOST) as error:
                # One that had lived for a while is no failure in a row.
                failures = 1 if time.monotonic() - began > _PROBE else failures + 1
                wait = _AGAIN.wait(failures)
                logger.warning("%s: not listening, again in %.1f s: %s", self.name, wait, error)
                await stop.sleep(wait)

    async def _listen(self, stop: Stop) -> None:
        opening = open_connection(self._connector, self._dsn, self.name, self._connect_timeout)
        connection = await stop.or_stop(opening)
        if connection is None:
            return
        lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            async with asyncio.timeout(_STATEMENT):
                await connection.add_listener(CHANNEL, self._heard)
            self._wake()
            while not stop.requested:
                await stop.or_stop(_within(lost, _PROBE))
                if lost.is_set():
                    raise Unavailable("the connection was lost")
                if not stop.requested:
                    async with asyncio.timeout(_STATEMENT):
                        await connection.execute("SELECT 1")
        finally:
            # Nothing needs a goodbye: the server forgets a listener with its session.
            connection.terminate()

    def _heard(self, *_: object) -> None:
        self._wake()


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
