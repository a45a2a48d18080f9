"""The guest's forms, driven by hand as a server would."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from types import FrameType
from typing import Any

import pytest

from quiesce import Budget, Part, Service, Stop, critical, service
from quiesce.asgi import application, lifespan, stop_of
from quiesce.asgi.heard_signals import HeardSignals
from quiesce.errors import QuiesceError, SettingsError
from quiesce.supervisor.health import AsgiApp

BUDGET = Budget(grace_period=5, prestop=0, http=1, workers=1, producers=0.5, pools=0.5, report=0.2, margin=0.2)

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Server:
    """Drives the lifespan of an application and sends it requests."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._in: asyncio.Queue[Any] = asyncio.Queue()
        self.out: asyncio.Queue[Any] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Any:
        self._in.put_nowait({"type": "lifespan.startup"})
        self._task = asyncio.create_task(self._live(), name="lifespan")
        return await self.out.get()

    async def stop(self) -> Any:
        self._in.put_nowait({"type": "lifespan.shutdown"})
        message = await self.out.get()
        assert self._task is not None
        await self._task
        return message

    async def _live(self) -> None:
        await self._app({"type": "lifespan"}, self._in.get, self.put)

    async def put(self, message: Any) -> None:
        self.out.put_nowait(message)

    async def request(self, path: str = "/", kind: str = "http") -> list[Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "websocket.connect" if kind == "websocket" else "http.request"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": kind, "method": "GET", "path": path, "headers": [], "state": {"theirs": 1}}
        await self._app(scope, receive, send)
        return sent


async def hello(scope: Any, receive: Receive, send: Send) -> None:
    assert scope["state"]["theirs"] == 1
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_outside_its_lifespan_the_application_answers_503_and_refuses_websockets() -> None:
    @service("orders", budget=BUDGET)
    async def orders(s: Service) -> None:
        assert s.http(hello) == 0, "nothing is bound"

    server = Server(application(orders))
    assert (await server.request())[0]["status"] == 503
    assert (await server.request(kind="websocket"))[0]["type"] == "websocket.close"
    assert await server.start() == {"type": "lifespan.startup.complete"}
    assert (await server.request())[0]["status"] == 200
    assert await server.stop() == {"type": "lifespan.shutdown.complete"}
    assert (await server.request())[0]["status"] == 503


async def test_a_start_that_fails_is_told_to_the_server() -> None:
    @service("orders", budget=BUDGET)
    async def orders(s: Service) -> None:
        raise QuiesceError("no database")

    message = await Server(application(orders)).start()
    assert message == {"type": "lifespan.startup.failed", "message": "orders cannot start: no database"}


async def test_requests_in_the_hands_of_the_application_hold_back_the_closers() -> None:
    closed: list[str] = []
    answered = asyncio.Event()
    begun = asyncio.Event()

    @contextlib.asynccontextmanager
    async def pool() -> AsyncIterator[str]:
        yield "pool"
        closed.append(f"pool, answered: {answered.is_set()}")

    async def slow(scope: Any, receive: Receive, send: Send) -> None:
        begun.set()
        await stop_of(scope).wait()
        await critical("charge", asyncio.sleep, 0.05)
        answered.set()
        await hello(scope, receive, send)

    @service("orders", budget=BUDGET)
    async def orders(s: Service) -> None:
        s.http(slow)
        await s.open(pool(), name="pool", part=Part.POOLS)

    server = Server(application(orders))
    await server.start()
    request = asyncio.create_task(server.request())
    await begun.wait()
    # hypercorn ends the lifespan at its own timeout, whatever still runs.
    await server.stop()
    assert closed == ["pool, answered: True"]
    start = (await request)[0]
    assert (b"connection", b"close") in start["headers"]


async def test_the_lifespan_takes_the_application_it_belongs_to_and_no_other() -> None:
    @service("shop", budget=BUDGET)
    async def shop(s: Service) -> None:
        s.http(app)

    async def app(scope: Any, receive: Receive, send: Send) -> None: ...

    async with lifespan(shop)(app) as state:
        stop = stop_of({"state": dict(state)})
        assert [stop.reason] == [None]
    assert not await stop.sleep(60)
    assert stop.reason == "its server stops"
    with pytest.raises(SettingsError, match="the application whose lifespan this is"):
        async with lifespan(shop)(hello):
            pass


async def test_a_service_that_stops_asks_its_server_to_end() -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, asked.set)

    async def leaves(stop: Stop) -> None:
        raise ValueError("broken")

    @service("shop", budget=BUDGET)
    async def shop(s: Service) -> None:
        s.loop(leaves)

    try:
        async with lifespan(shop)(hello), asyncio.timeout(3):
            await asked.wait()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_signals_are_heard_passed_on_and_given_back() -> None:
    """A repeat within the debounce is one step, and still reaches the server."""
    theirs: list[int] = []
    ours: list[tuple[int, int]] = []

    def handler(number: int, frame: FrameType | None) -> None:
        theirs.append(number)

    before = signal.signal(signal.SIGTERM, handler)
    heard = HeardSignals(asyncio.get_running_loop(), lambda step, number: ours.append((step, number)))
    try:
        heard.install()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert theirs == [signal.SIGTERM] * 2
        assert ours == [(1, signal.SIGTERM)]
        heard.restore()
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_where_the_server_has_no_handlers_none_is_installed(caplog: pytest.LogCaptureFixture) -> None:
    """A handler in front of the default action would make the process immune to SIGTERM."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        HeardSignals(asyncio.get_running_loop(), lambda step, number: None).install()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert "the server has no handlers in this process" in caplog.text
        await asyncio.to_thread(HeardSignals(asyncio.get_running_loop(), lambda step, number: None).install)
        assert "does not run in the main thread" in caplog.text
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
