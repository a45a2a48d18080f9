"""What clients are answered at the edges of a request with a key: they leave, keys cannot be kept or freed, pages and
tasks of the framework."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI
from key_scene import pool, serving
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, StreamingResponse

from quiesce.asgi import Idempotency, IdempotencyMiddleware
from quiesce.postgres import IdempotencyKeys

if TYPE_CHECKING:
    from quiesce.testing.postgres_address import PostgresAddress

pytestmark = pytest.mark.needs("postgres")
INSERT = "INSERT INTO effect (name) VALUES ('x')"


@pytest.fixture(scope="module")
def database(postgres: "PostgresAddress", database_template: str) -> Iterator[str]:
    name = f"quiesce_test_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name, database_template)
    postgres.drop_database(name)


async def test_K37_a_client_that_leaves_amid_its_answer_finds_it_when_it_comes_back(database: str) -> None:
    async with pool(database) as db:
        idempotency = Idempotency(IdempotencyKeys(db, hold="lease"), scope="none")
        app = FastAPI()
        began, left = asyncio.Event(), asyncio.Event()

        @app.post("/file")
        async def file() -> StreamingResponse:
            await db.execute(INSERT)  # on a connection of its own, so that only its key tells that it is done

            async def pieces() -> AsyncIterator[bytes]:
                yield b"one "
                began.set()
                async with asyncio.timeout(20):
                    await left.wait()
                yield b"two"

            # With its length, and so collected before a byte of it leaves.
            return StreamingResponse(pieces(), headers={"Content-Length": "7"})

        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)

        async def watched(scope: Any, receive: Any, send: Any) -> None:
            async def heard() -> Any:
                message = await receive()
                if message["type"] == "http.disconnect":
                    left.set()
                return message

            await app(scope, heard, send)

        async with serving(watched, db) as here:
            address = urlsplit(here.url)
            _, out = await asyncio.open_connection(address.hostname, address.port)
            out.write(b"POST /file HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nIdempotency-Key: one\r\n")
            out.write(b"Content-Type: application/json\r\n\r\n")
            await out.drain()
            async with asyncio.timeout(20):
                await began.wait()
            out.transport.abort()
            again = await here.post("/file", "one")

            assert (again.status, again.body, again.replayed, await here.effects()) == (200, b"one two", True, 1)


async def test_an_answer_that_cannot_be_kept_at_once_is_kept_a_moment_later(database: str) -> None:
    async with pool(database) as db, pool(database, size=1) as for_keys:
        # Whoever waits for a connection gives up after a second.
        idempotency = Idempotency(IdempotencyKeys(for_keys, hold="lease"), scope="none", wait=0.0)
        app = FastAPI()
        busy: list[Any] = []

        @app.post("/orders", status_code=201)
        async def order() -> dict[str, bool]:
            await db.execute(INSERT)
            if not busy:
                busy.append(await for_keys.acquire())
                asyncio.get_running_loop().call_later(
                    1.3, lambda: busy.append(asyncio.ensure_future(for_keys.release(busy[0])))
                )
            return {"placed": True}

        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)
        async with serving(app, db) as here:
            first = await here.post("/orders", "one")
            again = await here.post("/orders", "one")

            assert (first.status, first.replayed, again.status, again.replayed) == (201, False, 201, True)
            assert await here.effects() == 1


async def test_where_nothing_says_that_it_is_done_no_answer_promises_once(database: str) -> None:
    async with pool(database) as db, pool(database, size=1) as for_keys:
        idempotency = Idempotency(IdempotencyKeys(for_keys, hold="lease", lease=1.5), scope="none", wait=0.0)
        app = FastAPI()

        @app.post("/orders")
        async def order() -> dict[str, bool]:
            await db.execute(INSERT)
            await for_keys.acquire()
            return {"placed": True}

        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)
        async with serving(app, db) as here:
            told = await here.post("/orders", "one")
            for_keys.terminate()

        assert (told.status, told.problem) == (503, "not-committed")
        assert b"may be carried out once more" in told.body


async def test_a_key_that_cannot_be_freed_costs_no_answer(database: str, caplog: pytest.LogCaptureFixture) -> None:
    async with pool(database) as db:
        idempotency = Idempotency(IdempotencyKeys(db, hold="lease"), scope="none")
        app = FastAPI()

        @app.post("/orders")
        async def order() -> JSONResponse:
            await db.execute("ALTER TABLE idempotency_key RENAME TO elsewhere")
            return JSONResponse({"field": "missing"}, 422)

        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)
        try:
            async with serving(app, db) as here:
                refused = await here.post("/orders", "one")
        finally:
            await db.execute("ALTER TABLE IF EXISTS elsewhere RENAME TO idempotency_key")

        assert (refused.status, refused.body) == (422, b'{"field":"missing"}')
        assert "could not be freed" in caplog.text


async def test_an_error_page_outside_finds_the_request_as_it_came(database: str, tmp_path: Path) -> None:
    page = tmp_path / "500.html"
    page.write_text("sorry")
    async with pool(database) as db:
        idempotency = Idempotency(IdempotencyKeys(db, hold="transaction"), scope="none")
        app = FastAPI()

        @app.post("/orders")
        async def order() -> None:
            raise ValueError("a fault of the application")

        @app.exception_handler(Exception)
        async def sorry(request: Any, error: Exception) -> FileResponse:
            return FileResponse(page, 500)

        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)
        async with serving(app, db) as here:
            told = await here.post("/orders", "one")

        assert (told.status, told.body) == (500, b"sorry")


async def test_K39_a_dependency_that_ends_before_the_answer_keeps_background_tasks_behind_the_commit(
    database: str,
) -> None:
    async with pool(database) as db:
        idempotency = Idempotency(IdempotencyKeys(db, hold="transaction"), scope="none")
        app = FastAPI()
        done: list[int] = []

        async def unit_of_work() -> AsyncIterator[Any]:
            async with idempotency.transaction() as connection:
                yield connection

        @app.post("/orders")
        async def order(
            parent: int, after: BackgroundTasks, connection: Annotated[Any, Depends(unit_of_work, scope="function")]
        ) -> PlainTextResponse:
            await connection.execute("INSERT INTO effect (name, parent) VALUES ('child', $1)", parent or None)
            after.add_task(done.append, parent)
            return PlainTextResponse("placed", background=after)

        app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)
        async with serving(app, db) as here:
            refused = await here.post("/orders?parent=99", "one")
            assert (refused.status, refused.problem, done, await here.effects()) == (500, "not-committed", [], 0)
            placed = await here.post("/orders?parent=0", "two")
            assert (placed.status, placed.body, await here.effects()) == (200, b"placed", 1)

        assert done == [0]
