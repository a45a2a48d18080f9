"""uvicorn, driven by us: our socket, our signals, our drain.

Left to itself it calls `sys.exit` in a task when it cannot bind, takes over the signal handlers and raises
the signal once more after serving, drops who stands in the listener's queue, and cancels late requests
without waiting for them. So only its protocols and its clock of headers are used, and the rest is ours.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quiesce.errors import SettingsError, StartError
from quiesce.lifecycle.deadline import Deadline
from quiesce.supervisor.health import Gate
from quiesce.supervisor.http_connections import tell_http, tell_websocket, watched
from quiesce.supervisor.http_listener import Listener

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger("quiesce.supervisor")

LOOK = 0.02
"""Seconds between two looks at the connections in the drain; the end of a request is noticed at once."""
LAST_CALL = 1.0
"""Seconds before the deadline at which the websockets still open are closed, so that their handlers can end
in order. At most a fifth of the bound."""
UNWIND = 1.0
"""Seconds for which aborted requests are waited for."""


def configured(gate: Gate, settings: dict[str, Any]) -> "uvicorn.Config":
    """uvicorn's settings for one application, read in the start-up function: there a bad one ends with status 78.

    Args:
        settings: further ones of `uvicorn.Config`, such as `h11_max_incomplete_event_size`.

    Raises:
        SettingsError: uvicorn does not take them.
        StartError: uvicorn is not installed.
    """
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise StartError(f"s.http needs {error.name}, which is not installed: pip install 'quiesce[http]'") from None
    try:
        # When we are the host, no resource lives in the application's lifespan: it would be closed before
        # our workers end.
        config = uvicorn.Config(gate, **{"log_config": None, "access_log": False, **settings, "lifespan": "off"})
        config.load()
    except Exception as error:
        # Names only: a value may be the password of a key.
        told = ", ".join(settings) or "none"
        raise SettingsError(f"s.http: uvicorn does not take its settings ({told}): {error}") from error
    return config


class HttpServer:
    """One application on one socket.

    Args:
        config: see `configured`.
        listens: how many may stand in the socket's queue, where that is not as it was bound.
    """

    def __init__(self, gate: Gate, sock: socket.socket, config: "uvicorn.Config", listens: int | None = None) -> None:
        self.gate = gate
        self._sock = sock
        self._port = int(sock.getsockname()[1])
        self._config = config
        self._listens = listens
        self._server: uvicorn.Server | None = None
        self._listener: Listener | None = None
        self._http_class: Any = None
        self._ticking: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._draining = False
        self._aborted = False
        self._closed: set[Any] = set()

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        """Begins to accept connections."""
        import uvicorn

        config = self._config
        server = uvicorn.Server(config)
        self._http_class = watched(config.http_protocol_class, self._changed.set)
        await server.on_tick(0)
        if self._draining:
            return
        self._server = server
        if self._listens is not None:
            self._sock.listen(self._listens)
        self._listener = Listener(self._sock, self._protocol, config.ssl, self._changed.set)
        self._listener.open()
        self._ticking = asyncio.create_task(self._tick(server), name="http date header")

    async def drain(self, deadline: Deadline, on_end: Callable[[], None]) -> None:
        """Takes who stands in the queue, closes the listener, finishes what is in flight, calls `on_end`.

        Streams and websockets are told to end. Past `abort` it waits until the requests that were cancelled
        have ended. The caller decides when to abort; `deadline` bounds the wait for it all the same.
        """
        self._draining = True
        try:
            if self._server is None or self._listener is None:
                self._sock.close()
                return
            self.gate.stop.fire(self.gate.reason, deadline)
            self._listener.close()
            await self._finish(self._server.server_state, self._listener, deadline)
        finally:
            if self._ticking is not None:
                self._ticking.cancel()
            on_end()

    def abort(self) -> list[str]:
        """Cancels the requests still in flight. Returns their names: method and path."""
        self._aborted = True
        self.gate.refusing = True
        self._changed.set()
        names = []
        for task in self._tasks():
            request = self.gate.in_flight.get(task)
            if request is not None:
                names.append(request.name)
            task.cancel("the time for requests in flight is over")
        return names

    def in_flight(self) -> list[tuple[str, float, "asyncio.Task[Any]"]]:
        """The requests in flight: method and path, age in seconds, and the task, for whoever shows its stack."""
        return self.gate.requests()

    def _protocol(self) -> Any:
        assert self._server is not None
        return self._http_class(config=self._server.config, server_state=self._server.server_state, app_state={})

    def _tasks(self) -> list["asyncio.Task[Any]"]:
        return [] if self._server is None else list(self._server.server_state.tasks)

    async def _finish(self, state: Any, listener: Listener, deadline: Deadline) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        last_call = deadline.at - min(LAST_CALL, deadline.remaining(began) / 5)
        hard = deadline.at + UNWIND
        aborted_at: float | None = None
        noticed: set[asyncio.Task[Any]] = set()
        while (state.connections or state.tasks or listener.arriving) and (now := loop.time()) < hard:
            self._changed.clear()
            for connection in list(state.connections):
                self._tell(connection, now, began, last_call=now >= last_call or self._aborted)
            if self._aborted and aborted_at is None:
                aborted_at = now
                hard = min(hard, now + UNWIND)
            if self._aborted and not state.tasks:
                break
            for task in set(state.tasks) - noticed:
                # The end of a websocket's handler is no event of its protocol.
                noticed.add(task)
                task.add_done_callback(self._task_ended)
            try:
                async with asyncio.timeout(LOOK):
                    await self._changed.wait()
            except TimeoutError:
                continue
        for task in list(state.tasks):
            request = self.gate.in_flight.get(task)
            log.warning("%s did not end when it was cancelled", request.name if request else task.get_name())
        for connection in list(state.connections):
            connection.transport.abort()
        for arriving in listener.arriving:
            arriving.cancel()

    def _tell(self, connection: Any, now: float, began: float, *, last_call: bool) -> None:
        if connection in self._closed:
            return
        if isinstance(connection, self._http_class):
            tell_http(connection, now, began)
        elif tell_websocket(connection, now, began, last_call=last_call):
            self._closed.add(connection)

    def _task_ended(self, _: "asyncio.Task[Any]") -> None:
        self._changed.set()

    async def _tick(self, server: "uvicorn.Server") -> None:
        counter = 0
        while True:
            await asyncio.sleep(1.0)
            # A multiple of ten makes it renew the date header.
            counter += 10
            await server.on_tick(counter)
            self.gate.look()
