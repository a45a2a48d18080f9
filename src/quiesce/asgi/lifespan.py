"""The guest of an application that exists already: `FastAPI(lifespan=quiesce.asgi.lifespan(orders))`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from quiesce.asgi.guest import guest
from quiesce.asgi.hosted_http import HostedHttp
from quiesce.errors import SettingsError
from quiesce.supervisor.definition import ServiceDefinition
from quiesce.supervisor.health import Gate
from quiesce.supervisor.request_stop import STOP_KEY, HttpStop, RequestStop
from quiesce.supervisor.service import Service

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


def lifespan(definition: ServiceDefinition, *, hear_signals: bool = False) -> Lifespan:
    """Runs the service in the lifespan of a Starlette or FastAPI application.

    The service function puts what handlers need on `app.state`. It may call `s.http(app)` with this very
    application: served by somebody else, nothing is bound, and the same function works under `quiesce run`.
    Health endpoints and `/metrics` are not added; `quiesce.asgi.application` has them.

    Args:
        hear_signals: begin the shutdown when SIGTERM arrives and not only when the server is done with its
            requests. The server's own handler is called as before.
    """

    @contextlib.asynccontextmanager
    async def manager(app: Any) -> AsyncIterator[Mapping[str, Any]]:
        stops: list[HttpStop] = []

        def mount(gate: Gate, mounted: Any) -> HostedHttp:
            if mounted is not app:
                raise SettingsError(
                    "s.http: as a guest it takes the application whose lifespan this is, got another one; "
                    "pass that one, or serve the service as quiesce.asgi.application(...)"
                )
            stops.append(gate.stop)
            return HostedHttp(gate, in_front=False)

        async def start(s: Service) -> None:
            await definition.start(s)
            if not stops:
                # Resources must stay open until the server is done with its requests, so it has to be known.
                s.http(app)

        async with guest(replace(definition, start=start), mount, hear_signals=hear_signals):
            stop = stops[0] if stops else HttpStop(asyncio.get_running_loop().time)
            yield {STOP_KEY: RequestStop(stop)}

    return manager
