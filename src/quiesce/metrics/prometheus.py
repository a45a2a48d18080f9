"""One observer for all of them; it also answers `/metrics`."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from quiesce.lifecycle.events import Event
from quiesce.metrics.consumer import ConsumerMetrics
from quiesce.metrics.handlers import Handlers
from quiesce.metrics.relay import OutboxMetrics, RelayMetrics
from quiesce.metrics.service import ServiceMetrics

AsgiApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]


class PrometheusMetrics:
    """Give it to a service: `@service("orders", observers=[PrometheusMetrics()])`.

    Args:
        registry: where the metrics are registered; the process's own by default.
        path: where they are served by the service's HTTP server.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY, path: str = "/metrics") -> None:
        self._registry = registry
        self.routes: Mapping[str, AsgiApp] = {path: self._serve}
        self._handlers: Handlers = {
            **ServiceMetrics(registry).handlers,
            **RelayMetrics(registry).handlers,
            **OutboxMetrics(registry).handlers,
            **ConsumerMetrics(registry).handlers,
        }

    def observe(self, event: Event) -> None:
        handle = self._handlers.get(type(event))
        if handle is not None:
            handle(event)

    async def _serve(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        accept = next((value.decode() for name, value in scope["headers"] if name == b"accept"), "")
        encode, content_type = choose_encoder(accept)
        body = encode(self._registry)
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
