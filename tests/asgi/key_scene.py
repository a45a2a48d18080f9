"""A real server with a small shop behind the idempotency middleware, on real PostgreSQL, and clients."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import asyncpg
import uvicorn

from quiesce.asgi import Idempotency, IdempotencyMiddleware
from quiesce.supervisor.health import AsgiApp

TABLE = """
CREATE TABLE IF NOT EXISTS effect (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text,
    parent bigint REFERENCES effect DEFERRABLE INITIALLY DEFERRED
);
TRUNCATE effect, idempotency_key RESTART IDENTITY
"""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotency-replayed") == "true"

    @property
    def problem(self) -> str:
        """The last word of the problem's type; empty where it is none."""
        if self.headers.get("content-type") != "application/problem+json":
            return ""
        return str(json.loads(self.body)["type"]).rpartition(":")[2]


@dataclass
class Shop:
    """Where the clients of one test go."""

    db: "asyncpg.Pool[Any]"
    url: str
    session: aiohttp.ClientSession

    async def post(self, path: str, key: str | None = None, body: Any = b"", **headers: str) -> Answer:
        sent = {"content-type": "application/json", **{n.replace("_", "-"): v for n, v in headers.items()}}
        if key is not None:
            sent["Idempotency-Key"] = key
        async with self.session.post(self.url + path, data=body, headers=sent) as response:
            told = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, told, await response.read())

    async def effects(self) -> int:
        found: int = await self.db.fetchval("SELECT count(*) FROM effect")
        return found

    async def keys(self) -> list[tuple[str, str]]:
        """Key and state of each that is kept."""
        return [tuple(row) for row in await self.db.fetch("SELECT key, state FROM idempotency_key ORDER BY key")]


@contextlib.asynccontextmanager
async def pool(dsn: str, size: int = 5) -> "AsyncIterator[asyncpg.Pool[Any]]":
    async with asyncpg.create_pool(dsn, min_size=1, max_size=size, timeout=20) as db:
        await db.execute(TABLE)
        yield db


@contextlib.asynccontextmanager
async def serving(app: AsgiApp, db: "asyncpg.Pool[Any]") -> AsyncIterator[Shop]:
    """A uvicorn of this process. It is stopped in order at the end of the block."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        task = asyncio.create_task(server.serve([listener]))
        try:
            async with asyncio.timeout(20):
                while not server.started:
                    await asyncio.sleep(0.01)
            # A connection each: after an error the server closes its own without a word.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            timeout = aiohttp.ClientTimeout(total=40)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                yield Shop(db, f"http://127.0.0.1:{listener.getsockname()[1]}", session)
        finally:
            server.should_exit = True
            await asyncio.wait({task}, timeout=20)


def guarded(app: AsgiApp, idempotency: Idempotency) -> AsgiApp:
    return IdempotencyMiddleware(app, idempotency)
