"""The service as an ASGI application: `app = quiesce.asgi.application(orders)`, for any server."""

from quiesce.asgi.guest import guest
from quiesce.asgi.hosted_http import HostedHttp
from quiesce.errors import QuiesceError
from quiesce.supervisor.definition import ServiceDefinition
from quiesce.supervisor.health import AsgiApp, Gate, Receive, Scope, Send, answer


def application(definition: ServiceDefinition, *, hear_signals: bool = False) -> AsgiApp:
    """The unchanged service function under another server: what it gives to `s.http` is served there.

    Health endpoints, `/metrics`, `Connection: close` in the drain and the stop token of requests are as they
    are under `quiesce run`. The server must support the ASGI lifespan; uvicorn, gunicorn with uvicorn-worker
    and hypercorn do.

    Args:
        hear_signals: begin the shutdown when SIGTERM arrives and not only when the server is done with its
            requests. The server's own handler is called as before.
    """
    return _Application(definition, hear_signals)


class _Application:
    def __init__(self, definition: ServiceDefinition, hear_signals: bool) -> None:
        self._definition = definition
        self._hear_signals = hear_signals
        self._gate: Gate | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._gate is not None:
            await self._gate(scope, receive, send)
        elif scope["type"] == "http":
            # Before the lifespan, after it, or a service that serves nothing.
            await answer(send, 503, {"status": "not ready", "reason": "the service does not serve HTTP now"})
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1013})

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        started = False
        try:
            async with guest(self._definition, self._mount, hear_signals=self._hear_signals):
                started = True
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except QuiesceError as error:
            if started:
                raise
            message = f"{self._definition.name} cannot start: {error}"
            await send({"type": "lifespan.startup.failed", "message": message})
            return
        finally:
            self._gate = None
        await send({"type": "lifespan.shutdown.complete"})

    def _mount(self, gate: Gate, app: object) -> HostedHttp:
        self._gate = gate
        return HostedHttp(gate, in_front=True)
