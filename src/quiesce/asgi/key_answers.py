"""Answers that the application has no part in: replays, and problems."""

from quiesce.inbox.kept_response import KeptResponse
from quiesce.inbox.key_problems import CONTENT_TYPE, Problem, response_not_kept
from quiesce.supervisor.health import Send

REPLAYED = b"idempotency-replayed"


async def answer_problem(send: Send, problem: Problem) -> None:
    """Sends it, with Retry-After where it has one."""
    headers = [(b"content-type", CONTENT_TYPE), (b"cache-control", b"no-store")]
    if problem.retry_after is not None:
        headers.append((b"retry-after", str(problem.retry_after).encode()))
    await _send(send, problem.status, headers, problem.body())


async def replay(send: Send, response: KeptResponse) -> None:
    """Sends what the first attempt was answered, or says that it could not be kept."""
    if response.body is None:
        await answer_problem(send, response_not_kept(response))
        return
    await _send(send, response.status, [*response.headers, (REPLAYED, b"true")], response.body)


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    if status not in (204, 304):
        headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
