"""What uvicorn does not tell of its connections: whether a request is on its way in, and when one ends."""

import asyncio
import contextlib
import struct
from collections.abc import Callable
from typing import Any

from quiesce.supervisor.request_stop import STOP_KEY, RequestStop

FRESH = 0.1
"""Seconds in which the first bytes of a new connection may still be on their way."""
HEAD = 2.0
"""Seconds in which the rest of a request must come whose first bytes are here. Its body has the whole bound."""
ECHO = 1.0
"""Seconds for a client to answer the close frame that the handler has sent."""


def watched(kind: Any, changed: Callable[[], None]) -> Any:
    """A subclass of uvicorn's protocol class that notes arrivals and calls `changed` at each end."""

    class Watched(kind):  # type: ignore[misc]  # which class is known only at run time
        quiesce_http = True

        def connection_made(self, transport: asyncio.Transport) -> None:
            self.quiesce_made = self.quiesce_arrived_at = self.loop.time()
            self.quiesce_arrived = False
            super().connection_made(transport)

        def data_received(self, data: bytes) -> None:
            if not self.quiesce_arrived:
                self.quiesce_arrived = True
                self.quiesce_arrived_at = self.loop.time()
            super().data_received(data)

        def on_response_complete(self) -> None:
            # Before the parser goes on: what is pipelined behind counts as a request of its own.
            self.quiesce_arrived = False
            super().on_response_complete()
            changed()

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            changed()

    return Watched


def tell_http(connection: Any, now: float, drain_began: float) -> None:
    """Closes the connection as soon as no request is under way on it.

    In a request's answer it says so; one whose first bytes have arrived is still read and answered.
    """
    cycle = getattr(connection, "cycle", None)
    if cycle is not None and not cycle.response_complete:
        connection.shutdown()  # tells the answer under way to be the last
        return
    if connection.transport.is_closing():
        return
    if connection.quiesce_arrived and now - max(connection.quiesce_arrived_at, drain_began) < HEAD:
        return
    never_used = cycle is None and not connection.quiesce_arrived
    if never_used and now - connection.quiesce_made < FRESH:
        return
    if not connection.quiesce_arrived and _unread(connection.transport):
        return
    connection.shutdown()


def tell_websocket(connection: Any, now: float, drain_began: float, *, last_call: bool) -> bool:
    """Closes a websocket with 1012 where its handler will not, or has; True once there is no more to do.

    Its handler then finds `websocket.disconnect`, as if the client had gone.
    """
    token = (getattr(connection, "scope", None) or {}).get("state", {}).get(STOP_KEY)
    if connection.transport.is_closing():
        return True
    listens = not isinstance(token, RequestStop) or token.taken
    if getattr(connection, "close_sent", False):
        listens = now - drain_began < ECHO
    if listens and not last_call:
        return False
    connection.shutdown()
    return True


def _unread(transport: asyncio.Transport) -> bool:
    """Whether the kernel holds bytes of this connection that the loop has not read yet."""
    import fcntl
    import termios

    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, ValueError):
        return bool(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, b"\0" * 4))[0])
    return False
