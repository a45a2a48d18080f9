"""A TCP proxy before a real server: it cuts the line at a chosen word of the client's, or now, falls silent, or makes
the way longer."""

import asyncio
from typing import Literal, Self
from urllib.parse import urlsplit

Cut = Literal["before", "after", "silent"]


class WireProxy:
    """An async context manager. `cut_at` arms it once: cut "before" the word reaches the server, or "after" the
    server has answered it and before the client hears of it; "silent": of this line nothing passes any more, and nobody
    is told."""

    def __init__(self, dsn: str, *, delay: float = 0.0) -> None:
        """`delay`: seconds that whatever passes takes, one way, however much passes meanwhile."""
        self._delay = delay
        self._parts = urlsplit(dsn)
        self._word = b""
        self._when: Cut = "before"
        self._ways: set[asyncio.Task[None]] = set()
        self._links = 0
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        async with asyncio.timeout(3.0):
            while self._links:
                for way in self._ways:
                    way.cancel()
                await asyncio.sleep(0.001)

    @property
    def dsn(self) -> str:
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://{self._parts.username}@127.0.0.1:{port}{self._parts.path}?sslmode=disable"

    @property
    def links(self) -> int:
        """How many clients are connected now."""
        return self._links

    def freeze(self) -> None:
        """From now on nothing passes, either way, and nobody is told. New connections are taken, as silently."""
        self._flowing.clear()

    def thaw(self) -> None:
        """What was held back passes, and what comes."""
        self._flowing.set()

    def cut(self) -> None:
        """Cuts every connection that there is now."""
        for way in self._ways:
            way.cancel()

    def cut_at(self, word: bytes, when: Cut) -> None:
        self._word, self._when = word, when

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._links += 1
        server_reader, server_writer = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        cutting = asyncio.Event()
        ways = {
            asyncio.create_task(self._to_server(reader, server_writer, cutting)),
            asyncio.create_task(self._to_client(server_reader, writer, cutting)),
        }
        self._ways |= ways
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        self._ways -= ways
        for end in (writer, server_writer):
            end.transport.abort()
        self._links -= 1

    async def _to_server(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cutting: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            await self._flowing.wait()
            if self._word and self._word in data:
                self._word = b""
                if self._when == "before":
                    return
                if self._when == "silent":
                    await asyncio.Event().wait()
                cutting.set()
            self._pass(writer, data)

    async def _to_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cutting: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            await self._flowing.wait()
            if cutting.is_set():
                return
            self._pass(writer, data)

    def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self._delay:
            asyncio.get_running_loop().call_later(self._delay, writer.write, data)
        else:
            writer.write(data)
