"""The gate in front of the application: health, metrics, 503 until ready, `Connection: close` in the drain."""

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol, runtime_checkable

from quiesce.lifecycle.phases import Phase
from quiesce.supervisor.readiness import Readiness

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

LIVE = "/health/live"
READY = "/health/ready"


@runtime_checkable
class ServesRoutes(Protocol):
    """An observer that answers HTTP paths of its own, such as `/metrics`."""

    @property
    def routes(self) -> Mapping[str, AsgiApp]: ...


class Gate:
    """ASGI application around the user's. Liveness and readiness are separate (R-SHUT-CFG-4).

    Liveness says 200 as long as the loop turns: a pod that drains must not be restarted for it.
    """

    def __init__(self, app: AsgiApp, readiness: Readiness, routes: Mapping[str, AsgiApp]) -> None:
        self._app = app
        self._readiness = readiness
        self._routes = routes
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path == LIVE:
            await answer(send, 200, {"status": "alive", "phase": self._readiness.phase.value})
        elif path == READY:
            state = self._readiness
            await answer(
                send,
                200 if state.ready else 503,
                {
                    "status": "ready" if state.ready else "not ready",
                    "reason": state.reason,
                    "phase": state.phase.value,
                },
            )
        elif path in self._routes:
            await self._routes[path](scope, receive, send)
        elif self._readiness.phase is Phase.STARTING:
            body = {"status": "not ready", "reason": self._readiness.reason, "phase": Phase.STARTING.value}
            await answer(send, 503, body, [(b"retry-after", b"1")])
        else:
            self.in_flight += 1
            try:
                await self._app(scope, receive, self._closing(send))
            finally:
                self.in_flight -= 1

    def _closing(self, send: Send) -> Send:
        """In the drain each answer tells its client not to come back on this connection."""

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and self._readiness.phase is not Phase.RUNNING:
                headers = [h for h in message.get("headers", ()) if h[0].lower() != b"connection"]
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
            await send(message)

        return closing


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
