"""The stop token of a request: how a stream or a websocket learns that it is time to end."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from quiesce.lifecycle.deadline import Deadline

STOP_KEY = "quiesce.stop"
"""Where the token stands in `scope["state"]`; in Starlette that is `request.state`, by `getattr`."""


class HttpStop:
    """One for all requests of a server. The shell fires it when the listener closes, not before: a client
    that is told to end comes back at once, and must then reach another replica."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.reason: str | None = None
        self.deadline = Deadline.never()
        self.fired = asyncio.Event()

    def fire(self, reason: str, deadline: Deadline) -> None:
        """Tells every request. A second call changes nothing."""
        if self.reason is None:
            self.reason = reason
            self.deadline = deadline
            self.fired.set()

    def shorten(self, deadline: Deadline) -> None:
        """Less time is left than was told."""
        self.deadline = min(self.deadline, deadline)


class RequestStop:
    """What one request is given: told to end, and until when.

    `taken` becomes True with its first use. A websocket whose handler never looked at its token cannot be
    expected to end by itself, so the server closes it at the beginning of the drain.
    """

    __slots__ = ("_http", "taken")

    def __init__(self, http: HttpStop) -> None:
        self._http = http
        self.taken = False

    @property
    def requested(self) -> bool:
        self.taken = True
        return self._http.reason is not None

    @property
    def reason(self) -> str | None:
        self.taken = True
        return self._http.reason

    @property
    def deadline(self) -> Deadline:
        """When the request is aborted; never, as long as no stop was requested."""
        self.taken = True
        return self._http.deadline

    def remaining(self) -> float:
        """Seconds to the deadline; infinite until a stop is requested."""
        self.taken = True
        return self._http.deadline.remaining(self._http.clock())

    async def wait(self) -> None:
        """Returns when the request should end."""
        self.taken = True
        await self._http.fired.wait()

    async def sleep(self, seconds: float) -> bool:
        """Sleeps, or returns at once when the request should end. True if it slept the whole time."""
        self.taken = True
        if self._http.reason is not None:
            return False
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._http.fired.wait()
        except TimeoutError:
            return self._http.reason is None
        return False


def stop_of(request: Any) -> RequestStop:
    """The stop token of a request or a websocket: an ASGI scope, or an object that has one as `scope`.

    Outside a service, as in a plain test of the handler, the token is one that never fires.

    Raises:
        TypeError: it is neither.
    """
    scope = request if isinstance(request, Mapping) else getattr(request, "scope", None)
    if not isinstance(scope, Mapping):
        raise TypeError(f"stop_of takes a request, a websocket or an ASGI scope, got {type(request).__name__}")
    token = scope.get("state", {}).get(STOP_KEY)
    if not isinstance(token, RequestStop):
        token = RequestStop(HttpStop(asyncio.get_running_loop().time))
    token.taken = True
    return token
