"""The listening socket: bound by us, and closed without dropping whoever already stands in its queue."""

import asyncio
import contextlib
import ctypes
import errno
import logging
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from typing import Any

from quiesce.errors import PortInUse, StartError

log = logging.getLogger("quiesce.supervisor")

BACKLOG = 2048
AT_ONCE = 100
"""Connections accepted in one turn of the loop; the others have their turn in between."""
PAUSE = 1.0
"""Seconds without accepting after the system had no room for one more connection."""

SO_ATTACH_FILTER = 26
# A socket filter sees a segment from its TCP header on. Byte 13 holds the flags, bit 1 of it is SYN.
_DROP_SYN = (
    struct.pack("HBBI", 0x30, 0, 0, 13),  # load the byte
    struct.pack("HBBI", 0x45, 0, 1, 0x02),  # SYN set: go on; else skip one
    struct.pack("HBBI", 0x06, 0, 0, 0),  # drop
    struct.pack("HBBI", 0x06, 0, 0, 0xFFFFFFFF),  # pass
)


def bind(host: str, port: int, backlog: int = BACKLOG) -> socket.socket:
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


class Listener:
    """Accepts, and knows which of those it accepted do not stand among the server's connections yet.

    `asyncio.Server` drops these when it is closed, and the kernel resets whoever is still in its queue,
    though both have been told that they are connected and may have sent a request (benoitc/gunicorn#3397).

    Args:
        protocol: makes the protocol of one connection.
        changed: is called whenever one of those on their way has arrived, or was gone.
    """

    def __init__(
        self,
        sock: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        changed: Callable[[], None],
    ) -> None:
        self._sock = sock
        self._protocol = protocol
        self._tls = tls
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._resume: asyncio.TimerHandle | None = None
        self.arriving: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        self._resume = None
        self._loop.add_reader(self._sock.fileno(), self._accept, AT_ONCE)

    def close(self) -> None:
        """Takes all that stand in the queue, and closes the socket. They are in `arriving`.

        On Linux nobody joins the queue meanwhile: a SYN is dropped, so its client tries again a second later
        and is then refused, or reaches our successor. Elsewhere a gap of microseconds remains between the
        last accept and the close.
        """
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._sock.fileno())
        _drop_new(self._sock)
        self._accept(None)
        self._sock.close()

    def _accept(self, limit: int | None) -> None:
        taken = 0
        while limit is None or taken < limit:
            taken += 1
            try:
                sock, _ = self._sock.accept()
            except (InterruptedError, ConnectionAbortedError):
                continue
            except BlockingIOError:
                return
            except OSError as error:
                self._cannot(error, last=limit is None)
                return
            sock.setblocking(False)
            # In a task of its own: with TLS it takes as long as the client likes.
            task = self._loop.create_task(self._arrive(sock), name="http connection")
            self.arriving.add(task)
            task.add_done_callback(self._arrived)

    async def _arrive(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, sock, ssl=self._tls)
        except OSError as error:  # TLS errors are such, too
            log.debug("a connection was gone before it was there: %s", error)
            sock.close()

    def _arrived(self, task: "asyncio.Task[Any]") -> None:
        self.arriving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection could not be taken", exc_info=error)
        self._changed()

    def _cannot(self, error: OSError, *, last: bool) -> None:
        # Most likely no file descriptor is left. The queue is readable all the time, so look away a while.
        log.error("cannot accept connections: %s", error)
        if not last:
            self._loop.remove_reader(self._sock.fileno())
            self._resume = self._loop.call_later(PAUSE, self.open)


def _drop_new(sock: socket.socket) -> None:
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(_DROP_SYN))
    # A kernel without filters (a sandbox may lack them) leaves the gap that other platforms have.
    with contextlib.suppress(OSError):
        sock.setsockopt(
            socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", len(_DROP_SYN), ctypes.addressof(program))
        )
