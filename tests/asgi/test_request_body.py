"""What the middleware holds of a request's body, measured: the limit bounds it, whatever comes and in what pieces."""

import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quiesce.asgi import Idempotency, IdempotencyMiddleware
from quiesce.asgi.request_body import fingerprint_of, read_body, receive_again
from quiesce.inbox.kept_response import KeptResponse
from quiesce.inbox.key_ports import KeyClaim, NoClaim
from quiesce.inbox.keyed_request import KeyedRequest
from quiesce.supervisor.health import Message, Receive, Scope, Send

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/orders",
    "query_string": b"",
    "headers": [(b"idempotency-key", b'"one"'), (b"transfer-encoding", b"chunked")],
}


class Body:
    """A client that sends so many bytes in pieces of one size. Each piece is made when it is asked for."""

    def __init__(self, size: int, piece: int) -> None:
        self.left = size
        self.asked = 0
        self._piece = piece

    async def receive(self) -> Message:
        self.asked += 1
        size = min(self._piece, self.left)
        self.left -= size
        return {"type": "http.request", "body": bytes([self.asked % 256]) * size, "more_body": self.left > 0}


class NoStore:
    """Where no key is to be claimed."""

    async def claim(self, request: KeyedRequest | None, within: float) -> KeyClaim | KeptResponse | NoClaim:
        raise AssertionError(f"a key was claimed for {request}")


async def peak_of(call: Callable[[], Awaitable[Any]]) -> int:
    """Bytes that the call had allocated at once, at most."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        await call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [200_000, 20_000_000])
async def test_K44_of_a_body_over_the_limit_no_more_than_the_limit_is_held(size: int) -> None:
    limit, piece = 50_000, 1_000
    body, answers = Body(size, piece), list[Message]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the handler began")

    async def send(message: Message) -> None:
        answers.append(message)

    guarded = IdempotencyMiddleware(app, Idempotency(NoStore(), scope="none", max_request_bytes=limit))
    peak = await peak_of(lambda: guarded(dict(SCOPE), body.receive, send))
    assert answers[0]["status"] == 413
    assert peak < 2 * limit
    # Nor is more of it asked for, so that the server stops reading as well.
    assert body.asked == limit // piece + 1


async def test_K44_a_body_within_the_limit_is_held_once_however_small_its_pieces() -> None:
    size = 200_000
    body = Body(size, 2)
    scope = dict(SCOPE)
    found: list[Any] = []

    async def read() -> None:
        found.append(await read_body(scope, body.receive, size, fingerprint_of(scope)))

    # Once as it is collected, and once as it is handed over. An object a piece would be thirty times as much.
    assert await peak_of(read) < 3 * size
    assert [len(one) for one in found] == [size]
    assert (await receive_again(found[0], body.receive)())["body"] == found[0]
