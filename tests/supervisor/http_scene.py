"""A server without a service around it: the test opens, drains and aborts it by hand."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event
from quiesce.lifecycle.phases import Phase
from quiesce.supervisor.health import AsgiApp, Gate, ReadinessWhileDraining
from quiesce.supervisor.http import HttpServer, configured
from quiesce.supervisor.http_listener import bind
from quiesce.supervisor.readiness import Readiness
from quiesce.supervisor.request_stop import HttpStop

GET = b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"


async def hello(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


class Scene:
    """`ended` is set when the drain calls its `on_end`."""

    def __init__(
        self, app: AsgiApp, implementation: str, while_draining: ReadinessWhileDraining = 503, **settings: Any
    ) -> None:
        self.events: list[Event] = []
        self.readiness = Readiness(self.events.append)
        self.gate = Gate(
            app,
            self.readiness,
            {},
            stop=HttpStop(asyncio.get_running_loop().time),
            tell=self.events.append,
            readiness_while_draining=while_draining,
        )
        config = configured(self.gate, {"http": implementation, **settings})
        self.server = HttpServer(self.gate, bind("127.0.0.1", 0), config, settings.get("backlog"))
        self.ended = asyncio.Event()

    async def start(self) -> None:
        await self.server.start()
        self.readiness.phase = Phase.RUNNING
        self.readiness.become_ready()

    def stop(self) -> None:
        """What the shell does at T0."""
        self.readiness.become_not_ready("a test")
        self.readiness.phase = Phase.DRAINING

    async def drain(self, within: float = 5.0) -> float:
        """Stops and drains; returns the seconds it took."""
        self.stop()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.server.drain(Deadline(began + within), self.ended.set)
        return loop.time() - began

    def client(self) -> socket.socket:
        """Connected by the kernel; the loop has not run meanwhile."""
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=5)


@contextlib.asynccontextmanager
async def scene(
    app: AsgiApp = hello,
    implementation: str = "h11",
    while_draining: ReadinessWhileDraining = 503,
    **settings: Any,
) -> AsyncIterator[Scene]:
    served = Scene(app, implementation, while_draining, **settings)
    await served.start()
    try:
        yield served
    finally:
        if not served.ended.is_set():
            served.server.abort()
            await served.drain(0.1)


async def ask(client: socket.socket, request: bytes = GET) -> bytes:
    client.sendall(request)
    return await answer(client)


async def answer(client: socket.socket) -> bytes:
    """Reads until the announced length is there, or the connection ends."""

    def read() -> bytes:
        data = b""
        while True:
            head, found, body = data.partition(b"\r\n\r\n")
            if found:
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if lengths and len(body) >= int(lengths[0].split(b":")[1]):
                    return data
            more = client.recv(65536)
            if not more:
                return data
            data += more

    return await asyncio.to_thread(read)


def connections(served: Scene) -> list[Any]:
    """uvicorn's protocol objects, one a connection."""
    assert served.server._server is not None
    return list(served.server._server.server_state.connections)


async def ended(client: socket.socket) -> bool:
    """Whether the other side closed in order: an end, and no reset."""
    return await asyncio.to_thread(client.recv, 1) == b""


async def until(condition: Callable[[], bool], within: float = 3.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.002)
