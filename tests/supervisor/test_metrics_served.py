"""What a scrape of `/metrics` reads while requests are in flight, from a real server."""

import asyncio
import re
from typing import Any

from prometheus_client import CollectorRegistry

from quiesce import Budget, Service, running, service
from quiesce.metrics import PrometheusMetrics

BUDGET = Budget(grace_period=8, prestop=0, http=3, workers=1, producers=1, pools=1, report=0.5, margin=0.5)


async def get(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


async def gauge(port: int, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", (await get(port, "/metrics")).decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


async def shows(port: int, name: str, value: float) -> None:
    """A change is told within 0.1 s; the scrape itself is no request of the application's."""
    async with asyncio.timeout(5):
        while await gauge(port, name) != value:
            await asyncio.sleep(0.02)


async def test_the_gauge_of_requests_in_flight_follows_them_in_the_drain_too() -> None:
    go = [asyncio.Event() for _ in range(3)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await go[int(scope["path"][1:])].wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})

    registry = CollectorRegistry()

    @service("web", budget=BUDGET, observers=[PrometheusMetrics(registry)])
    async def web(s: Service) -> None:
        s.http(app, host="127.0.0.1", port=0)

    name = "app_http_requests_in_flight"
    async with running(web) as s:
        assert s.port is not None
        assert await gauge(s.port, name) == 0
        asked = [asyncio.create_task(get(s.port, f"/{n}")) for n in range(3)]
        await shows(s.port, name, 3)
        go[0].set()
        assert (await asked[0]).endswith(b"done")
        await shows(s.port, name, 2)
        stopping = asyncio.create_task(s.stop())
        go[1].set()
        assert (await asked[1]).endswith(b"done")
        # The listener is closed; the figure is there for who holds the registry, as a last scrape does.
        async with asyncio.timeout(5):
            while registry.get_sample_value(name) != 1:
                await asyncio.sleep(0.01)
        assert not stopping.done()
        go[2].set()
        assert (await asked[2]).endswith(b"done")
        assert (await stopping).exit_code == 0
    async with asyncio.timeout(5):
        while registry.get_sample_value(name) != 0:
            await asyncio.sleep(0.01)
