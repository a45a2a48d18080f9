"""A request's body, read once: hashed as it streams, bounded, and handed to the application afterwards."""

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import Any

from quiesce.inbox.keyed_request import Fingerprint
from quiesce.supervisor.health import Message, Receive


class NoBody(Enum):
    TOO_LARGE = "more bytes than the limit"
    CLIENT_GONE = "the client left in the middle of it"


def fingerprint_of(scope: Mapping[str, Any]) -> Fingerprint:
    """Of the request, without its body yet."""
    path = scope.get("raw_path") or scope["path"].encode()
    return Fingerprint(scope["method"], path, scope.get("query_string", b""))


async def read_body(
    scope: Mapping[str, Any], receive: Receive, limit: int, fingerprint: Fingerprint
) -> "bytes | NoBody":
    """The whole body of at most `limit` bytes, as they are counted and not as a header says."""
    if any(name.lower() == b"content-length" and _more_than(value, limit) for name, value in scope["headers"]):
        return NoBody.TOO_LARGE
    # One buffer: of many small pieces each would cost many times its size.
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return NoBody.CLIENT_GONE
        piece = message.get("body", b"")
        if len(body) + len(piece) > limit:
            return NoBody.TOO_LARGE
        fingerprint.body(piece)
        body += piece
        if not message.get("more_body", False):
            return bytes(body)


def receive_again(body: bytes, receive: Receive) -> Receive:
    """What the application receives: the body in one piece, and then whatever the server says."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def unheard_leaving(receive: Receive, decided: asyncio.Event) -> Receive:
    """The same, but that a client has left is told only once its answer is `decided`. Its request is carried out all
    the same, and frameworks stop an answer halfway when they hear of it."""
    left: Message | None = None

    async def heard() -> Message:
        nonlocal left
        message = left or await receive()
        if message["type"] == "http.disconnect":
            # Servers may say it once, and whoever asks may give up waiting here.
            left = message
            # Not bounded here: it is a wait for the client, and ends with its request, which a drain bounds.
            await decided.wait()
        return message

    return heard


def _more_than(value: bytes, limit: int) -> bool:
    return value.isdigit() and int(value) > limit
