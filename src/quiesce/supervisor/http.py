"""uvicorn, driven by us: our socket, our signals, our drain.

Left to itself it calls `sys.exit` in a task when it cannot bind, takes over the signal handlers and raises
the signal once more after serving, and cancels late requests without waiting for them. So its `Server` is
used from `startup` on, and the drain is ours.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quiesce.errors import PortInUse, StartError
from quiesce.lifecycle.deadline import Deadline

if TYPE_CHECKING:
    import uvicorn

    from quiesce.supervisor.health import AsgiApp

POLL = 0.005
"""uvicorn has no event for "the last connection is gone", so the drain looks every so many seconds."""


def bind(host: str, port: int, backlog: int = 2048) -> socket.socket:
    """A listening socket.

    Raises:
        PortInUse: another process listens there.
        StartError: the address cannot be used for another reason.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(backlog)
    except (OSError, OverflowError) as error:
        sock.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortInUse(f"port {port} on {host} is taken by another process; stop it or choose another") from None
        raise StartError(f"cannot listen on {host} port {port}: {error}") from None
    sock.setblocking(False)
    return sock


class HttpServer:
    """One application on one socket.

    Args:
        settings: further settings of `uvicorn.Config`, such as `h11_max_incomplete_event_size`.
    """

    def __init__(self, app: "AsgiApp", sock: socket.socket, settings: dict[str, Any]) -> None:
        self._app = app
        self._sock = sock
        self._settings = settings
        self._server: uvicorn.Server | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._aborted = False

    @property
    def port(self) -> int:
        return int(self._sock.getsockname()[1])

    async def start(self) -> None:
        """Begins to accept connections."""
        import uvicorn

        config = uvicorn.Config(
            self._app,
            # When we are the host, no resource lives in the application's lifespan: it would be closed
            # before our workers end.
            lifespan="off",
            log_config=None,
            access_log=False,
            **self._settings,
        )
        config.load()
        self._server = server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.on_tick(0)
        await server.startup(sockets=[self._sock])
        self._ticking = asyncio.create_task(self._tick(server), name="http date header")

    async def drain(self, deadline: Deadline, on_end: Callable[[], None]) -> None:
        """Closes the listener, finishes what is in flight, calls `on_end`.

        Past `abort` it waits until the requests that were cancelled have ended. The caller decides when to
        abort; `deadline` bounds the wait for it all the same.
        """
        try:
            if self._server is None:
                self._sock.close()
                return
            if self._ticking is not None:
                self._ticking.cancel()
            for listener in self._server.servers:
                listener.close()
            state = self._server.server_state
            loop = asyncio.get_running_loop()
            hard = deadline.at + 1.0
            while (state.connections or state.tasks) and loop.time() < hard:
                # Asked again each time: a connection whose first request came in the meantime is told, too.
                for connection in list(state.connections):
                    connection.shutdown()
                if self._aborted and not state.tasks:
                    break
                await asyncio.sleep(POLL)
        finally:
            on_end()

    def abort(self) -> int:
        """Cancels the requests still in flight. Returns how many there were."""
        self._aborted = True
        if self._server is None:
            return 0
        state = self._server.server_state
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel("the time for requests in flight is over")
        if not tasks:
            for connection in list(state.connections):
                with contextlib.suppress(AttributeError):
                    connection.transport.abort()
        return len(tasks)

    def in_flight(self) -> int:
        return 0 if self._server is None else len(self._server.server_state.tasks)

    @staticmethod
    async def _tick(server: "uvicorn.Server") -> None:
        counter = 0
        while True:
            await asyncio.sleep(1.0)
            # A multiple of ten makes it renew the date header.
            counter += 10
            await server.on_tick(counter)
