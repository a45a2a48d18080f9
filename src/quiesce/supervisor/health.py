"""The gate in front of the application: health, metrics, 503 until ready, `Connection: close` in the drain."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable
from urllib.parse import quote

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event, RequestsInFlight
from quiesce.lifecycle.phases import Phase
from quiesce.supervisor.readiness import Readiness
from quiesce.supervisor.request_stop import STOP_KEY, HttpStop, RequestStop

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class HttpPart(Protocol):
    """What drains: our server, or the connection to the one that hosts us."""

    @property
    def port(self) -> int: ...

    async def drain(self, deadline: Deadline, on_end: Callable[[], None]) -> None:
        """Finishes what is in flight, and calls `on_end`; past `abort` once what was cancelled has ended."""
        ...

    def abort(self) -> list[str]:
        """Cancels the requests still in flight. Returns their names: method and path."""
        ...

    def in_flight(self) -> list[tuple[str, float, "asyncio.Task[Any]"]]:
        """The requests in flight: method and path, age in seconds, and the task."""
        ...


Mount = Callable[["Gate", Any], HttpPart]
"""Takes the gate, and the application behind it, where another server serves them."""

COUNT_WITHIN = 0.1
"""Seconds within which a change of the number of requests in flight is told."""

LIVE = "/health/live"
READY = "/health/ready"

ReadinessWhileDraining = Literal[503, 200]


@runtime_checkable
class ServesRoutes(Protocol):
    """An observer that answers HTTP paths of its own, such as `/metrics`."""

    @property
    def routes(self) -> Mapping[str, AsgiApp]: ...


@dataclass(frozen=True, slots=True)
class RequestInFlight:
    """`name`: method and path, never the query, which may hold secrets. `began`: on the loop's clock."""

    name: str
    began: float


class Gate:
    """ASGI application around the user's. Liveness and readiness are separate (R-SHUT-CFG-4).

    Liveness says 200 as long as the loop turns: a pod that drains must not be restarted for it.

    Args:
        stop: fired when streams and websockets should end.
        tell: is told how many requests are in flight.
        enter: makes `critical` belong to the service, in the context of a request.
        readiness_while_draining: the status of `/health/ready` in the drain. 200 for a mesh or an alert that
            takes each 503 for an accident; the body says "draining" in both cases.
    """

    def __init__(
        self,
        app: AsgiApp,
        readiness: Readiness,
        routes: Mapping[str, AsgiApp],
        *,
        stop: HttpStop,
        tell: Callable[[Event], None],
        enter: Callable[[], None] = lambda: None,
        readiness_while_draining: ReadinessWhileDraining = 503,
    ) -> None:
        self._app = app
        self._readiness = readiness
        self._routes = routes
        self._tell = tell
        self._enter = enter
        self._status_while_draining = readiness_while_draining
        self.stop = stop
        self.refusing = False
        """Set once requests are aborted: one that comes later still is answered with 503."""
        self.in_flight: dict[asyncio.Task[Any], RequestInFlight] = {}
        self._count_is_due = False

    @property
    def reason(self) -> str:
        return self._readiness.reason

    def requests(self) -> list[tuple[str, float, "asyncio.Task[Any]"]]:
        """The requests in flight: method and path, age in seconds, and the task."""
        now = self.stop.clock()
        return [(request.name, now - request.began, task) for task, request in self.in_flight.items()]

    def look(self) -> bool:
        """Asks the workers for their progress and returns whether the service is ready."""
        return self._readiness.look(self.stop.clock())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._http(scope, receive, self._closing(send))

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == LIVE:
            await answer(send, 200, {"status": "alive", "phase": self._readiness.phase.value})
        elif path == READY:
            await self._ready(send)
        elif path in self._routes:
            await self._routes[path](scope, receive, send)
        elif self._refuses():
            body = {"status": "not ready", "reason": self._readiness.reason, "phase": self._readiness.phase.value}
            await answer(send, 503, body, [(b"retry-after", b"1")])
        else:
            await self._pass_on(f"{scope['method']} {_shown(path)}", scope, receive, send)

    async def _ready(self, send: Send) -> None:
        state = self._readiness
        if self.look():
            status, word = 200, "ready"
        elif self._draining():
            status, word = self._status_while_draining, "draining"
        else:
            status, word = 503, "not ready"
        await answer(send, status, {"status": word, "reason": state.reason, "phase": state.phase.value})

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._refuses():
            # Before it was accepted, so the client gets a refused handshake and no close code.
            await receive()
            await send({"type": "websocket.close", "code": 1013, "reason": self._readiness.reason})
        else:
            await self._pass_on(f"WEBSOCKET {_shown(scope['path'])}", scope, receive, send)

    async def _pass_on(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        # A copy: not every server gives each request a `state` of its own.
        scope["state"] = {**scope.get("state", {}), STOP_KEY: RequestStop(self.stop)}
        self._enter()
        task = asyncio.current_task()
        assert task is not None, "an ASGI server runs each request in a task"
        self.in_flight[task] = RequestInFlight(name, self.stop.clock())
        self._count_changed()
        try:
            await self._app(scope, receive, send)
        finally:
            del self.in_flight[task]
            self._count_changed()

    def _count_changed(self) -> None:
        # Two events a request would cost more than all else here; a scrape comes every few seconds.
        if not self._count_is_due:
            self._count_is_due = True
            asyncio.get_running_loop().call_later(COUNT_WITHIN, self._tell_count)

    def _tell_count(self) -> None:
        self._count_is_due = False
        self._tell(RequestsInFlight(len(self.in_flight)))

    def _refuses(self) -> bool:
        # Once closing has begun, as a guest may see it, what the application needs is no longer there.
        return self.refusing or self._readiness.phase not in (Phase.RUNNING, Phase.DRAINING)

    def _draining(self) -> bool:
        return self._readiness.phase not in (Phase.STARTING, Phase.RUNNING)

    def _closing(self, send: Send) -> Send:
        """In the drain each answer tells its client not to come back on this connection."""

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._draining():
                headers = [h for h in message.get("headers", ()) if h[0].lower() != b"connection"]
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
            await send(message)

        return closing


def _shown(path: str) -> str:
    """For logs and the report: servers decode the path, and a line feed in it would forge a line."""
    return path if path.isprintable() else quote(path)


async def answer(
    send: Send, status: int, body: Mapping[str, object], headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """Sends a small JSON response that nobody may cache."""
    content = json.dumps(body).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(content)).encode()),
                (b"cache-control", b"no-store"),
                *(headers or []),
            ],
        }
    )
    await send({"type": "http.response.body", "body": content})
