"""What a client is told where a key stands in its way, as `application/problem+json` (RFC 9457)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from quiesce.inbox.kept_response import KeptResponse

CONTENT_TYPE = b"application/problem+json"
_TYPE = "urn:quiesce:problem:"


@dataclass(frozen=True, slots=True)
class Problem:
    """One answer. `retry_after`: seconds, where the same request may be sent again."""

    status: int
    code: str
    title: str
    detail: str
    retry_after: int | None = None
    members: Mapping[str, object] = field(default_factory=dict)

    def body(self) -> bytes:
        told = {"type": _TYPE + self.code, "title": self.title, "status": self.status, "detail": self.detail}
        return json.dumps({**told, **self.members}).encode()


def key_missing() -> Problem:
    return Problem(
        400,
        "idempotency-key-missing",
        "Idempotency-Key is missing",
        "This operation takes a header Idempotency-Key: a string that is new for each operation and the same for each "
        "attempt at it, such as a UUID.",
    )


def key_malformed(why: str) -> Problem:
    return Problem(400, "idempotency-key-malformed", "Idempotency-Key is malformed", why)


def scope_unknown() -> Problem:
    return Problem(
        400,
        "idempotency-scope-unknown",
        "Nobody's Idempotency-Key",
        "Keys are kept apart by whose they are, and this request does not say who sends it.",
    )


def key_reused() -> Problem:
    return Problem(
        422,
        "idempotency-key-reused",
        "Idempotency-Key is already used",
        "The key was used for a request that differs in method, path, query or body. A new operation takes a new key.",
    )


def outstanding(retry_after: int) -> Problem:
    return Problem(
        409,
        "idempotency-key-in-use",
        "A request is outstanding for this Idempotency-Key",
        "The first request with this key is still being carried out. Send the same request again later.",
        retry_after,
    )


def response_not_kept(done: KeptResponse) -> Problem:
    return Problem(
        409,
        "idempotency-response-not-kept",
        "The request was carried out, and its response was not kept",
        f"The first request with this key was answered with status {done.status}; {done.not_kept}. It is not carried "
        "out again.",
        members={"original_status": done.status},
    )


def body_too_large(limit: int) -> Problem:
    return Problem(
        413,
        "request-too-large",
        "Request body is too large",
        f"With an Idempotency-Key a body may have {limit} bytes. The key is unused.",
    )


def store_unavailable() -> Problem:
    return Problem(
        503,
        "idempotency-keys-unavailable",
        "Idempotency keys cannot be looked up now",
        "Nothing was carried out. Send the same request again later.",
        1,
    )


def not_committed(passing: bool, *, undone: bool) -> Problem:
    """`passing`: the database was away, or another request in the way; the same may succeed a moment later. `undone`:
    what it did was to be committed with its key. What it did elsewhere stays, and nothing says that it is done."""
    return Problem(
        503 if passing else 500,
        "not-committed",
        "The request could not be committed",
        "Sent again with the same key, it is still carried out once at most."
        if undone
        else "It may have been carried out, and that could not be recorded. Sent again with the same key, it may be "
        "carried out once more.",
        1 if passing else None,
    )
