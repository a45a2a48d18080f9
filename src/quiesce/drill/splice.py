"""One client's connection through the balancer: bytes are handed on as they come, both ways."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

REQUEST_ID = re.compile(rb"\r\nx-request-id:[ \t]*([^\r\n]*)", re.IGNORECASE)
_MOST_HEAD = 65_536
_HEAD_BOUND = 10.0


class Splice(asyncio.Protocol):
    """The client's end. Once the head of the request is here, `dial` is called to find a replica.

    `request` is the request's `X-Request-Id`, empty if it has none.
    """

    def __init__(self, dial: Callable[["Splice"], None], on_end: Callable[["Splice"], None]) -> None:
        self._dial = dial
        self._on_end = on_end
        self._head = bytearray()
        self._dialled = False
        self._waiting: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._upstream: asyncio.Transport | None = None
        self.request = ""
        self.ended = False

    # What the balancer calls.

    def connect(self, upstream: asyncio.Transport) -> None:
        """A replica took the connection: it gets what the client has sent so far."""
        if self.ended:
            upstream.abort()
            return
        self._upstream = upstream
        upstream.write(bytes(self._head))
        self._head.clear()

    def answer(self, status: str, detail: str) -> None:
        """Answers in the replica's place and closes."""
        if self._transport is None or self.ended:
            return
        body = detail.encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        self._transport.close()

    def hand_back(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def close(self, *, torn: bool = False) -> None:
        """The replica's end is over. Torn, the client sees a reset and not a short answer."""
        if self._transport is not None:
            if torn:
                self._transport.abort()
            else:
                self._transport.close()

    def set_reading(self, reading: bool) -> None:
        _set_reading(self._transport, reading)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._waiting = asyncio.get_running_loop().call_later(_HEAD_BOUND, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._upstream is not None:
            self._upstream.write(data)
            return
        self._head += data
        if not self._dialled and (b"\r\n\r\n" in self._head or len(self._head) > _MOST_HEAD):
            self._dialled = True
            assert self._waiting is not None
            self._waiting.cancel()
            head = bytes(self._head).partition(b"\r\n\r\n")[0]
            found = REQUEST_ID.search(head)
            self.request = found[1].strip().decode(errors="replace") if found else ""
            self._dial(self)

    def pause_writing(self) -> None:
        _set_reading(self._upstream, False)

    def resume_writing(self) -> None:
        _set_reading(self._upstream, True)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        if self._waiting is not None:
            self._waiting.cancel()
        if self._upstream is not None:
            self._upstream.abort()
        self._on_end(self)


class Upstream(asyncio.Protocol):
    """The replica's end of a splice."""

    def __init__(self, splice: Splice) -> None:
        self._splice = splice

    def data_received(self, data: bytes) -> None:
        self._splice.hand_back(data)

    def pause_writing(self) -> None:
        self._splice.set_reading(False)

    def resume_writing(self) -> None:
        self._splice.set_reading(True)

    def connection_lost(self, error: Exception | None) -> None:
        self._splice.close(torn=error is not None)


def _set_reading(transport: Any, reading: bool) -> None:
    if transport is None or transport.is_closing():
        return
    if reading:
        transport.resume_reading()
    else:
        transport.pause_reading()
