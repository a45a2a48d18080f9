"""Idempotency keys on a real server and real PostgreSQL, in both ways to hold a key."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import asyncpg
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from key_scene import Shop, guarded, pool, serving
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse

from quiesce.asgi import Idempotency, IdempotencyMiddleware
from quiesce.asgi.idempotency_middleware import _name, _renew
from quiesce.errors import SettingsError, Unavailable
from quiesce.postgres import IdempotencyKeys, prune_keys
from quiesce.supervisor.health import AsgiApp

if TYPE_CHECKING:
    from quiesce.testing.postgres_address import PostgresAddress

Hold = Literal["transaction", "lease"]
INSERT = "INSERT INTO effect (name) VALUES ($1) RETURNING id"

pytestmark = pytest.mark.needs("postgres")
BOTH = pytest.mark.parametrize("hold", ["transaction", "lease"])


def user(scope: Any) -> str | None:
    return next((value.decode() for name, value in scope["headers"] if name == b"x-user"), None)


class Gateway:
    """Holds handlers at a point until the test lets them go."""

    def __init__(self) -> None:
        self.reached = asyncio.Semaphore(0)
        self.go = asyncio.Event()
        self.began = 0

    async def pass_by(self) -> None:
        self.began += 1
        self.reached.release()
        async with asyncio.timeout(40):
            await self.go.wait()


def shop_app(idempotency: Idempotency, db: "asyncpg.Pool[Any]", gateway: Gateway) -> FastAPI:
    """Handlers that write in the request's transaction, and some that behave badly."""
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)
    app.state.failures = 0

    @app.post("/orders", status_code=201)
    async def order(request: Request, response: Response) -> dict[str, int]:
        async with idempotency.transaction() as connection:
            made = await connection.fetchval(INSERT, "order")
        response.headers["Location"] = f"/orders/{made}"
        response.headers["X-Trace"] = "of this one"
        response.set_cookie("session", "of the first")
        return {"id": made}

    @app.post("/orders/{number}/cancel")
    @idempotency.in_transaction
    async def cancel(number: int, connection: Any) -> dict[str, int]:
        await connection.execute(INSERT, f"cancel {number}")
        return {"cancelled": number}

    @app.post("/slow", status_code=201)
    @idempotency.in_transaction
    async def slow(connection: Any) -> dict[str, int]:
        await gateway.pass_by()
        return {"id": await connection.fetchval(INSERT, "slow")}

    @app.post("/and-then", status_code=201)
    async def and_then() -> Response:
        async with idempotency.transaction() as connection:
            made = await connection.fetchval(INSERT, "and then")
        return JSONResponse({"id": made}, 201, background=BackgroundTask(gateway.pass_by))

    @app.post("/kept-to-itself", status_code=201)
    async def kept_to_itself() -> dict[str, int]:
        made = await db.fetchval(INSERT, "own connection")
        await gateway.pass_by()
        return {"id": made}

    @app.post("/status/{status}")
    async def status(status: int, where: str = "after") -> Response:
        async with idempotency.transaction() as connection:
            await connection.execute(INSERT, "status")
            if where == "raised":
                raise HTTPException(status, "refused")
        return JSONResponse({"attempt": idempotency.attempt}, status)

    @app.post("/fails-once")
    async def fails_once(how: str) -> Response:
        async with idempotency.transaction() as connection:
            await connection.execute(INSERT, how)
        app.state.failures += 1
        if app.state.failures == 1:
            if how == "raise":
                raise RuntimeError("a fault of the application")
            return PlainTextResponse("try again", 503)
        return PlainTextResponse("done")

    @app.post("/deferred", status_code=201)
    async def deferred(parent: int, told: str = "") -> Response:
        async with idempotency.transaction() as connection:
            await connection.execute("INSERT INTO effect (name, parent) VALUES ('child', $1)", parent)
        return JSONResponse({}, 201, background=BackgroundTask(app.state.background.append, told))

    app.state.background = []

    async def unit_of_work() -> AsyncIterator[Any]:
        async with idempotency.transaction() as connection:
            yield connection

    @app.post("/by-dependency", status_code=201)
    async def by_dependency(parent: int, connection: Annotated[Any, Depends(unit_of_work)]) -> dict[str, bool]:
        await connection.execute("INSERT INTO effect (name, parent) VALUES ('child', $1)", parent or None)
        return {"ok": True}

    @app.post("/stream")
    async def stream(pieces: int = 3) -> StreamingResponse:
        async with idempotency.transaction() as connection:
            await connection.execute(INSERT, "stream")

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(pieces):
                yield b"x" * 1000

        return StreamingResponse(parts(), headers={"Location": "/streams/1"})

    @app.post("/bytes/{size}")
    async def some_bytes(size: int) -> Response:
        async with idempotency.transaction() as connection:
            await connection.execute(INSERT, "bytes")
        return PlainTextResponse(b"y" * size)

    @app.get("/orders")
    async def read() -> str:
        return "no key is asked for"

    return app


Open = Callable[..., AbstractAsyncContextManager[Shop]]


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture(scope="module")
def shop_database(postgres: "PostgresAddress", database_template: str) -> Iterator[str]:
    """One for all of these tests; each begins with empty tables."""
    name = f"quiesce_test_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name, database_template)
    postgres.drop_database(name)


@pytest.fixture
def shop(shop_database: str, gateway: Gateway) -> Open:
    """Opens a shop: settings of the store and of the middleware, and what stands around the application."""

    @contextlib.asynccontextmanager
    async def opened(
        hold: Hold = "transaction",
        *,
        size: int = 5,
        around: Callable[[AsgiApp], AsgiApp] = lambda app: app,
        inside: Callable[[FastAPI], None] = lambda app: None,
        lease: float = 30.0,
        keep: float = 86_400.0,
        **settings: Any,
    ) -> AsyncIterator[Shop]:
        async with pool(shop_database, size) as db:
            keys = IdempotencyKeys(db, hold=hold, lease=lease, keep=keep)
            idempotency = Idempotency(keys, **{"scope": "none", **settings})
            app = shop_app(idempotency, db, gateway)
            inside(app)
            async with serving(around(app), db) as opened_shop:
                try:
                    yield opened_shop
                finally:
                    gateway.go.set()

    return opened


@BOTH
async def test_K35_fifty_clients_with_one_key_get_one_effect_and_the_same_answer(shop: Open, hold: Hold) -> None:
    async with shop(hold, size=5, wait=60) as here:
        answers = await asyncio.gather(*(here.post("/orders", "one", b"{}") for _ in range(50)))

        assert {(answer.status, answer.body) for answer in answers} == {(201, answers[0].body)}
        assert sum(not answer.replayed for answer in answers) == 1
        assert await here.effects() == 1
        assert {answer.headers["location"] for answer in answers} == {f"/orders/{1}"}


@BOTH
async def test_K35_who_waits_holds_no_connection_and_two_processes_agree(
    shop: Open, hold: Hold, gateway: Gateway, shop_database: str
) -> None:
    async with shop(hold, size=2, wait=60) as here:
        first = asyncio.create_task(here.post("/slow", "one"))
        await gateway.reached.acquire()
        doubles = [asyncio.create_task(here.post("/slow", "one")) for _ in range(20)]
        # Another replica, with a pool of its own.
        async with asyncpg.create_pool(shop_database, min_size=1, max_size=1) as other_db:
            other = Idempotency(IdempotencyKeys(other_db, hold=hold), scope="none", wait=60)
            async with serving(shop_app(other, other_db, gateway), other_db) as there:
                doubles += [asyncio.create_task(there.post("/slow", "one")) for _ in range(20)]
                # The one connection that the first leaves, and the other's only one, serve other keys meanwhile.
                for n in range(5):
                    assert (await here.post("/orders", f"else-{n}")).status == 201
                    assert (await there.post("/orders", f"more-{n}")).status == 201
                gateway.go.set()
                answers = [await first, *await asyncio.gather(*doubles)]

        assert {(answer.status, answer.body) for answer in answers} == {(201, answers[0].body)}
        assert gateway.began == 1
        assert await here.db.fetchval("SELECT count(*) FROM effect WHERE name = 'slow'") == 1


@BOTH
async def test_K35_doubles_agree_where_transactions_are_serializable(shop: Open, hold: Hold) -> None:
    async with shop(hold, wait=60) as here:
        keys = IdempotencyKeys(here.db, hold=hold, isolation="serializable")
        replicas = [Idempotency(keys, scope="none", wait=60) for _ in range(4)]
        # Each has its own look at the store, as processes have.
        apps = [shop_app(replica, here.db, Gateway()) for replica in replicas]
        sent: list[list[Any]] = [[] for _ in apps * 3]
        await asyncio.gather(*(call(apps[n % 4], "one", answer, "/orders") for n, answer in enumerate(sent)))

        assert {(answer[0]["status"], answer[1]["body"]) for answer in sent} == {(201, b'{"id":1}')}
        assert await here.effects() == 1


@BOTH
async def test_K35_past_the_bound_a_double_gets_409_with_retry_after(shop: Open, hold: Hold, gateway: Gateway) -> None:
    async with shop(hold, wait=0.2) as here:
        first = asyncio.create_task(here.post("/slow", "one"))
        await gateway.reached.acquire()
        double = await here.post("/slow", "one")
        other = await here.post("/orders", "one")
        gateway.go.set()

        assert (double.status, double.problem, double.headers["retry-after"]) == (409, "idempotency-key-in-use", "1")
        assert (other.status, other.problem) == (422, "idempotency-key-reused")
        assert (await first).status == 201
        again = await here.post("/slow", "one")
        assert (again.status, again.replayed) == (201, True)


@BOTH
@pytest.mark.parametrize("how", ["raise", "answer"])
@pytest.mark.parametrize("place", ["outside", "inside"])
async def test_K37_a_failed_attempt_frees_its_key_wherever_the_error_middleware_stands(
    shop: Open, hold: Hold, how: str, place: str
) -> None:
    async def catch(request: Request, error: Exception) -> Response:
        return PlainTextResponse("caught", 500)

    def inside(app: FastAPI) -> None:
        if place == "inside":
            # Between our middleware and the handlers.
            app.add_exception_handler(RuntimeError, catch)

    async with shop(hold, inside=inside) as here:
        first = await here.post(f"/fails-once?how={how}", "one")
        assert (first.status, await here.effects(), await here.keys()) == (500 if how == "raise" else 503, 0, [])
        second = await here.post(f"/fails-once?how={how}", "one")
        assert (second.status, second.replayed, await here.effects()) == (200, False, 1)


@BOTH
@pytest.mark.parametrize("way", ["cancelled", "cancelled in a statement", "no response", "half a response"])
async def test_K37_each_way_out_without_a_whole_response_frees_the_key(shop: Open, hold: Hold, way: str) -> None:
    async with shop(hold) as here:
        idempotency = Idempotency(IdempotencyKeys(here.db, hold=hold), scope="none")
        written = asyncio.Event()

        async def handler(scope: Any, receive: Any, send: Any) -> None:
            async with idempotency.transaction() as connection:
                await connection.execute(INSERT, way)
                written.set()
                if way == "cancelled in a statement":
                    await connection.execute("SELECT pg_sleep(600)")
            if way == "cancelled":
                await asyncio.Event().wait()
            elif way == "half a response":
                headers = [(b"content-length", b"10")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": b"half", "more_body": True})

        sent: list[Any] = []
        request = asyncio.create_task(call(guarded(handler, idempotency), "one", sent))
        async with asyncio.timeout(20):
            await written.wait()
            if way.startswith("cancelled"):
                request.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await request
            await asyncio.wait({request})

        assert (sent, await here.effects(), await here.keys()) == ([], 0, [])


async def call(app: AsgiApp, key: str, sent: list[Any], path: str = "/") -> None:
    """One request by hand, as a server would make it."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"idempotency-key", key.encode())]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await app(scope, receive, send)


@BOTH
async def test_K37_a_client_that_leaves_finds_its_answer_when_it_comes_back(
    shop: Open, hold: Hold, gateway: Gateway
) -> None:
    async with shop(hold) as here:
        leaving = asyncio.create_task(here.post("/slow", "one"))
        await gateway.reached.acquire()
        leaving.cancel()
        await asyncio.wait({leaving})
        gateway.go.set()
        again = await here.post("/slow", "one")

        assert (again.status, again.replayed, await here.effects()) == (201, True, 1)


@BOTH
@pytest.mark.parametrize("path", ["/deferred", "/by-dependency"])
async def test_K39_a_constraint_that_fails_at_the_commit_gives_an_error_and_frees_the_key(
    shop: Open, hold: Hold, path: str
) -> None:
    errors: list[Exception] = []

    def tracked(app: AsgiApp) -> AsgiApp:
        async def around(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            except asyncpg.ForeignKeyViolationError as error:
                errors.append(error)

        return around

    apps: list[FastAPI] = []
    async with shop(hold, around=tracked, inside=apps.append) as here:
        refused = await here.post(f"{path}?parent=99&told=mail", "one")

        assert (refused.status, refused.problem) == (500, "not-committed")
        assert (await here.effects(), await here.keys(), len(errors)) == (0, [], 1)
        assert apps[0].state.background == [], "what follows an answer did not happen"
        await here.db.execute("INSERT INTO effect (name) VALUES ('parent')")
        parent = await here.db.fetchval("SELECT id FROM effect")
        good = await here.post(f"{path}?parent={parent}&told=mail", "one")
        again = await here.post(f"{path}?parent={parent}&told=mail", "one")
        assert (good.status, again.status, again.replayed, await here.effects()) == (201, 201, True, 2)


@BOTH
async def test_K39_a_database_that_is_lost_before_the_commit_gives_503_and_frees_the_key(
    shop: Open, hold: Hold
) -> None:
    async with shop(hold) as here:
        idempotency = Idempotency(IdempotencyKeys(here.db, hold=hold), scope="none")
        lost: list[bool] = []

        async def handler(scope: Any, receive: Any, send: Any) -> None:
            async with idempotency.transaction() as connection:
                await connection.execute(INSERT, "lost")
                server = await connection.fetchval("SELECT pg_backend_pid()")
            if not lost:
                lost.append(await here.db.fetchval("SELECT pg_terminate_backend($1, 10000)", server))
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await send({"type": "http.response.body", "body": b"placed"})

        app = guarded(handler, idempotency)
        first: list[Any] = []
        with pytest.raises(Unavailable):
            await call(app, "one", first)
        assert (first[0]["status"], await here.effects(), await here.keys()) == (503, 0, [])
        second: list[Any] = []
        await call(app, "one", second)
        assert (second[0]["status"], second[1]["body"], await here.effects()) == (201, b"placed", 1)


@BOTH
async def test_K40_a_5xx_is_never_stored_nor_what_was_written_before_it(shop: Open, hold: Hold) -> None:
    async with shop(hold) as here:
        for _ in range(3):
            answer = await here.post("/status/503", "one")
            assert (answer.status, answer.replayed, await here.effects(), await here.keys()) == (503, False, 0, [])


@BOTH
async def test_K40_a_4xx_is_stored_where_it_came_with_an_effect_and_else_leaves_the_key_free(
    shop: Open, hold: Hold
) -> None:
    async with shop(hold) as here:
        refused = await here.post("/status/409?where=raised", "refused")
        invalid = await here.post("/status/many", "invalid")
        assert (refused.status, invalid.status, await here.effects(), await here.keys()) == (409, 422, 0, [])
        # The same key for the corrected request.
        assert (await here.post("/status/200", "refused")).status == 200
        declined = await here.post("/status/402", "declined")
        again = await here.post("/status/402", "declined")
        assert (declined.status, again.status, again.replayed) == (402, 402, True)
        assert (await here.effects(), len(await here.keys())) == (2, 2)


async def test_K40_a_redirect_to_the_other_spelling_of_a_path_does_not_use_the_key_up(shop: Open) -> None:
    async with shop() as here:
        # The framework answers 307, and the client follows with the same method, body and key.
        answer = await here.post("/orders/", "one", b"{}")
        again = await here.post("/orders", "one", b"{}")

        assert (answer.status, again.status, again.replayed) == (201, 201, True)
        assert (answer.body, await here.effects()) == (again.body, 1)


async def test_K41_one_users_key_is_not_anothers(shop: Open) -> None:
    async with shop(scope=user) as here:
        alice, bob = [await here.post("/orders", "one", x_user=name) for name in ("alice", "bob")]
        nobody = await here.post("/orders", "one")

        assert alice.body != bob.body
        assert not bob.replayed
        assert (nobody.status, nobody.problem, await here.effects()) == (400, "idempotency-scope-unknown", 2)


async def test_K41_a_scope_of_any_length_is_told_apart(shop: Open) -> None:
    async with shop(scope=user) as here:
        answers = [await here.post("/orders", "one", x_user="s" * 300 + last) for last in "aab"]

        assert [answer.replayed for answer in answers] == [False, True, False]
        assert [answer.status for answer in answers] == [201] * 3


class AsyncScope:
    async def __call__(self, scope: Any) -> str:
        return "alice"


@pytest.mark.parametrize("scope", [AsyncScope().__call__, AsyncScope(), 7])
def test_K41_a_scope_that_is_no_plain_function_is_refused_at_the_start(scope: Any) -> None:
    with pytest.raises(SettingsError, match="takes a plain function, no coroutine function"):
        Idempotency(IdempotencyKeys(None), scope=scope)  # type: ignore[arg-type]


@pytest.mark.parametrize("scope", [lambda scope: 7, lambda scope: AsyncScope()(scope)])
def test_K41_a_scope_that_is_no_text_is_named(scope: Any) -> None:
    idempotency = Idempotency(IdempotencyKeys(None), scope=scope)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"answered with (int|coroutine), takes text .* such as str\(user_id\)"):
        idempotency.owner_of({})


async def test_a_lease_that_cannot_be_renewed_is_said_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Claim:
        calls = 0

        async def renew(self) -> bool:
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("of the driver")
            return False

    claim = Claim()
    async with asyncio.timeout(20):
        await _renew(cast("Any", claim), 0.01, "POST /orders")
    assert claim.calls == 2
    assert "POST /orders: the lease of its idempotency key could not be renewed, and is tried again" in caplog.text


@pytest.mark.parametrize("path", ["/a\nERROR forged", "/a\x1b[2J", "/\u2028x"])
def test_a_path_forges_no_line_of_the_log(path: str) -> None:
    assert _name({"method": "POST", "path": path}).isprintable()
    assert _name({"method": "POST", "path": "/orders/7:cancel"}) == "POST /orders/7:cancel"


@pytest.mark.parametrize("scope", [None, "tenant", ""])
def test_K41_without_a_scope_nothing_starts(scope: Any) -> None:
    with pytest.raises(SettingsError, match=r"scope=.*takes a function .* or 'none'"):
        Idempotency(IdempotencyKeys(None), scope=scope)  # type: ignore[arg-type]


@BOTH
async def test_K42_any_difference_in_method_path_query_or_body_is_422(shop: Open, hold: Hold) -> None:
    async with shop(hold) as here:
        first = await here.post("/orders/1/cancel", "one")
        assert first.status == 200
        others = [
            await here.post("/orders/2/cancel", "one"),
            await here.post("/orders/1/cancel?really=yes", "one"),
            await here.post("/orders/1/cancel", "one", b"{}"),
        ]
        async with here.session.patch(here.url + "/orders/1/cancel", headers={"Idempotency-Key": "one"}) as patched:
            assert patched.status == 422
        assert [(answer.status, answer.problem) for answer in others] == [(422, "idempotency-key-reused")] * 3
        same = await here.post("/orders/1/cancel", "one")
        assert (same.body, same.replayed, await here.effects()) == (first.body, True, 1)


@BOTH
async def test_K43_a_replay_has_status_body_and_allowed_headers_and_nobodys_cookie(shop: Open, hold: Hold) -> None:
    async with shop(hold) as here:
        first, again = [await here.post("/orders", "one") for _ in range(2)]

        assert "set-cookie" in first.headers
        assert not first.replayed
        assert (again.status, again.body, again.replayed) == (201, first.body, True)
        for name in ("location", "content-type", "content-length"):
            assert again.headers[name] == first.headers[name]
        assert not {"set-cookie", "x-trace"} & set(again.headers)


@BOTH
@pytest.mark.parametrize("path", ["/stream", "/bytes/2000"])
async def test_K43_what_cannot_be_kept_is_marked_done_and_a_retry_is_told_so(shop: Open, hold: Hold, path: str) -> None:
    async with shop(hold, max_response_bytes=1000) as here:
        first, again = [await here.post(path, "one") for _ in range(2)]

        assert (first.status, len(first.body)) == (200, 3000 if path == "/stream" else 2000)
        assert (again.status, again.problem) == (409, "idempotency-response-not-kept")
        assert b'"original_status": 200' in again.body
        assert (await here.effects(), await here.keys()) == (1, [("one", "done")])


async def test_K43_a_stream_is_not_collected_and_what_one_commits_is_there_before_its_first_byte(shop: Open) -> None:
    async with shop() as here:
        idempotency = Idempotency(IdempotencyKeys(here.db, hold="transaction"), scope="none")
        seen: list[tuple[int, int]] = []

        async def handler(scope: Any, receive: Any, send: Any) -> None:
            async with idempotency.transaction() as connection:
                await connection.execute(INSERT, "stream")
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(3):
                await send({"type": "http.response.body", "body": b"piece", "more_body": True})
                seen.append((len(sent), await here.effects()))
            await send({"type": "http.response.body", "body": b""})

        sent: list[Any] = []
        await call(guarded(handler, idempotency), "one", sent)

        assert seen == [(2, 1), (3, 1), (4, 1)]


async def test_K43_a_middleware_inside_that_passes_a_response_on_in_pieces_makes_no_stream_of_it(shop: Open) -> None:
    async def pass_on(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    def inside(app: FastAPI) -> None:
        # Added first, it stands inside of those that were added later.
        app.user_middleware.append(Middleware(BaseHTTPMiddleware, dispatch=pass_on))

    from starlette.middleware import Middleware

    async with shop(inside=inside) as here:
        first, again = [await here.post("/orders", "one") for _ in range(2)]
        assert (first.status, again.replayed, again.body) == (201, True, first.body)


@pytest.mark.parametrize("chunked", [True, False])
async def test_K44_a_body_over_the_limit_is_413_before_the_handler_and_leaves_the_key_free(
    shop: Open, chunked: bool
) -> None:
    async def pieces(size: int) -> AsyncIterator[bytes]:
        for _ in range(size // 1000):
            yield b"z" * 1000

    async with shop(max_request_bytes=10_000) as here:
        large = await here.post("/orders", "one", pieces(200_000) if chunked else b"z" * 200_000)
        assert (large.status, large.problem) == (413, "request-too-large")
        assert (await here.effects(), await here.keys()) == (0, [])
        small = await here.post("/orders", "one", pieces(10_000) if chunked else b"z" * 10_000)
        # The same bytes in another number of pieces are the same request.
        again = await here.post("/orders", "one", b"z" * 10_000)
        assert (small.status, again.replayed, await here.effects()) == (201, True, 1)


async def test_a_crashed_attempt_that_held_a_lease_is_carried_out_again_and_knows_it(
    shop: Open, gateway: Gateway
) -> None:
    async with shop("lease", lease=0.3, wait=20) as here:
        # What a killed process leaves: a claim that nobody renews.
        from quiesce.asgi.request_body import fingerprint_of

        left = fingerprint_of({"method": "POST", "path": "/status/200", "query_string": b""}).digest()
        await here.db.execute(
            "INSERT INTO idempotency_key (scope, key, fingerprint, owner, leased_till, expires_at) VALUES "
            "('', 'one', $1, gen_random_uuid(), now() + interval '0.3 s', now() + interval '1 day')",
            left,
        )
        other = await here.post("/status/201", "one")
        taken = await here.post("/status/200", "one")

        assert (other.status, other.problem) == (422, "idempotency-key-reused")
        assert (taken.status, taken.body, taken.replayed) == (200, b'{"attempt":2}', False)


async def test_a_lease_is_renewed_as_long_as_its_attempt_lives(shop: Open, gateway: Gateway) -> None:
    async with shop("lease", lease=6, wait=0.0) as here:
        first = asyncio.create_task(here.post("/kept-to-itself", "one"))
        await gateway.reached.acquire()
        until = await here.db.fetchval("SELECT leased_till FROM idempotency_key")
        async with asyncio.timeout(30):
            while not await here.db.fetchval("SELECT leased_till > $1 FROM idempotency_key", until):
                await asyncio.sleep(0.05)
        double = await here.post("/kept-to-itself", "one")
        gateway.go.set()

        assert double.status == 409
        assert ((await first).status, gateway.began, await here.effects()) == (201, 1, 1)


async def test_who_lost_its_lease_commits_nothing(shop: Open, gateway: Gateway) -> None:
    async with shop("lease", lease=30) as here:
        idempotency = Idempotency(IdempotencyKeys(here.db), scope="none")
        steal = "UPDATE idempotency_key SET owner = gen_random_uuid()"

        async def handler(scope: Any, receive: Any, send: Any) -> None:
            await here.db.execute(steal)
            async with idempotency.transaction() as connection:
                await connection.execute(INSERT, "late")

        sent: list[Any] = []
        await call(guarded(handler, idempotency), "one", sent)

        assert (sent[0]["status"], await here.effects(), await here.keys()) == (409, 0, [("one", "claimed")])


@BOTH
async def test_what_the_application_does_after_its_answer_keeps_no_retry_waiting(
    shop: Open, hold: Hold, gateway: Gateway
) -> None:
    async with shop(hold, wait=60) as here:
        first = await here.post("/and-then", "one")
        await gateway.reached.acquire()
        # Its background task waits for the gate, which is closed.
        again = await here.post("/and-then", "one")

        assert (again.status, again.body, again.replayed) == (201, first.body, True)
        assert not gateway.go.is_set()


async def test_a_key_that_has_expired_is_new_and_is_pruned(shop: Open) -> None:
    async with shop(keep=1000) as here:
        first = await here.post("/orders", "one")
        await here.post("/orders", "two")
        await here.db.execute("UPDATE idempotency_key SET expires_at = now() - interval '1 s'")
        again = await here.post("/orders", "one")
        assert not again.replayed
        assert again.body != first.body
        assert await prune_keys(here.db, piece=1) == 1
        assert [key for key, _ in await here.keys()] == ["one"]


async def test_a_missing_key_is_400_where_one_is_required_and_else_nothing_is_kept(shop: Open) -> None:
    async with shop() as here:
        missing = await here.post("/orders")
        assert (missing.status, missing.problem) == (400, "idempotency-key-missing")
        for malformed in ('""', "a" * 256, 'one", "two', "one, two"):
            refused = await here.post("/orders", malformed)
            assert (refused.status, refused.problem) == (400, "idempotency-key-malformed")
        async with here.session.get(here.url + "/orders") as response:
            assert response.status == 200
        # In quotes, as the draft has it, and without: one key.
        bare, quoted = [await here.post("/orders", key) for key in ("one", '"one"')]
        assert (quoted.body, quoted.replayed) == (bare.body, True)


async def test_without_a_key_a_request_is_one_transaction_all_the_same(shop: Open) -> None:
    async with shop(required=False) as here:
        assert (await here.post("/orders")).status == 201
        assert (await here.post("/status/500")).status == 500
        assert (await here.post("/deferred?parent=99")).status == 500
        assert (len((await here.post("/stream")).body), await here.effects(), await here.keys()) == (3000, 2, [])


async def test_a_handler_that_writes_elsewhere_is_told_once(
    shop: Open, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.go.set()
    async with shop("transaction") as here:
        for key in ("one", "two"):
            assert (await here.post("/kept-to-itself", key)).status == 201
    assert caplog.text.count("POST /kept-to-itself was answered without idempotency.transaction()") == 1


async def test_no_connection_in_time_is_503_and_the_key_stays_free(shop: Open) -> None:
    async with shop(size=1, wait=0.1) as here:
        async with here.db.acquire():
            busy = await here.post("/orders", "one")
        good = await here.post("/orders", "one")

        assert (busy.status, busy.problem, busy.headers["retry-after"]) == (503, "idempotency-keys-unavailable", "1")
        assert (good.status, good.replayed) == (201, False)


async def test_outside_of_its_middleware_a_transaction_is_refused(shop: Open) -> None:
    async with shop(applies=lambda scope: scope["path"] != "/orders") as here:
        assert (await here.post("/orders", "one")).status == 500
        idempotency = Idempotency(IdempotencyKeys(here.db), scope="none")
        with pytest.raises(RuntimeError, match="add IdempotencyMiddleware"):
            idempotency.transaction()
        with pytest.raises(SettingsError, match="takes no parameter `connection`"):
            idempotency.in_transaction(here.effects)
        with pytest.raises(SettingsError, match="no coroutine function"):
            idempotency.in_transaction(lambda connection: connection)
