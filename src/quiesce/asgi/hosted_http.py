"""The HTTP part of a shutdown where another server serves: it drains, and we learn when it is done."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from quiesce.lifecycle.deadline import Deadline
from quiesce.supervisor.health import Gate

UNWIND = 1.0
"""Seconds for which aborted requests are waited for."""


class HostedHttp:
    """Stands where `HttpServer` does. Resources stay open until the server has left, within the bound.

    Args:
        gate: the one in front of the application.
        in_front: False where requests reach the application without passing the gate; then it cannot know
            them, and there is nothing to abort.
    """

    def __init__(self, gate: Gate, *, in_front: bool) -> None:
        self.gate = gate
        self._in_front = in_front
        self._left = asyncio.Event()
        self._torn: Collection[asyncio.Task[Any]] = ()

    @property
    def port(self) -> int:
        """0: the port is the server's."""
        return 0

    def server_left(self, torn: Collection["asyncio.Task[Any]"] = ()) -> None:
        """The server has ended the lifespan: it has no requests any more.

        Args:
            torn: tasks that were cancelled in the middle of what they did, and now unwind.
        """
        self._torn = torn
        self._left.set()

    async def drain(self, deadline: Deadline, on_end: Callable[[], None]) -> None:
        """Tells streams and websockets to end and waits for the server, at most until shortly after `deadline`."""
        loop = asyncio.get_running_loop()
        self.gate.stop.fire(self.gate.reason, deadline)
        try:
            async with asyncio.timeout_at(deadline.at + (UNWIND if self._in_front else 0)):
                await self._left.wait()
            while self.gate.in_flight and loop.time() < deadline.at + UNWIND:
                # hypercorn leaves at its own timeout, whatever still runs.
                await asyncio.wait(list(self.gate.in_flight), timeout=deadline.at + UNWIND - loop.time())
            if self._torn:
                await asyncio.wait(self._torn, timeout=min(UNWIND, deadline.at + UNWIND - loop.time()))
        except TimeoutError:
            return
        finally:
            on_end()

    def abort(self) -> list[str]:
        """Cancels the requests in flight. Returns their names: method and path."""
        self.gate.refusing = True
        for task in self.gate.in_flight:
            # Not a second time where the server did it: that would tear what it unwinds.
            if not task.cancelling():
                task.cancel("the time for requests in flight is over")
        return [request.name for request in self.gate.in_flight.values()]

    def in_flight(self) -> list[tuple[str, float, "asyncio.Task[Any]"]]:
        """As `HttpServer.in_flight`."""
        return self.gate.requests()
