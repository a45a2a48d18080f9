"""Real HTTP servers of a few lines, as replicas for the balancer."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator


class SmallReplica:
    """Answers readiness as it is told to, and every other request with its own name.

    `hold` keeps requests unanswered until it is set; `silent` keeps it from answering readiness.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready = True
        self.silent = False
        self.hold = asyncio.Event()
        self.hold.set()
        self.requests: list[str] = []
        self.came = asyncio.Event()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def listen(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Closes the listener; what is open stays open."""
        assert self._server is not None
        self._server.close()

    def cut(self) -> None:
        """Resets everything that is open, as the kernel does for a process that was killed."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if head.startswith("GET /health/ready"):
                if self.silent:
                    await reader.read()  # until the asker gives up
                    return
                told = {"status": "ready" if self.ready else "not ready", "phase": "running", "reason": "told so"}
                await self._answer(writer, 200 if self.ready else 503, json.dumps(told))
                return
            length = re.search(r"content-length: *(\d+)", head, re.IGNORECASE)
            await reader.readexactly(int(length[1]) if length else 0)
            self.requests.append(head)
            self.came.set()
            await self.hold.wait()
            await self._answer(writer, 200, self.name)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    @staticmethod
    async def _answer(writer: asyncio.StreamWriter, status: int, body: str) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        await writer.drain()


@contextlib.asynccontextmanager
async def small_replicas(*names: str) -> AsyncIterator[list[SmallReplica]]:
    replicas = [SmallReplica(name) for name in names]
    for replica in replicas:
        await replica.listen()
    try:
        yield replicas
    finally:
        for replica in replicas:
            replica.hold.set()
            replica.refuse()
            replica.cut()
        await asyncio.sleep(0)


async def ask(port: int, request_id: str = "r", body: bytes = b"", *, path: str = "/x") -> tuple[int, str]:
    """One request on a connection of its own. Raises ConnectionError when it is cut without an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Request-Id: {request_id}\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        writer.write(body)
        async with asyncio.timeout(5):
            answer = (await reader.read(-1)).decode()
    finally:
        writer.close()
    if not answer:
        raise ConnectionError("closed without an answer")
    head, _, content = answer.partition("\r\n\r\n")
    return int(head.split()[1]), content
