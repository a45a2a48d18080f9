"""What a request is known by: whose it is, its key, and a fingerprint of all that it asks for."""

import hashlib
from dataclasses import dataclass

MAX_SCOPE = 255
"""Characters of a scope."""

_DIGEST = "sha256:"


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request with an idempotency key. It is looked up by scope and key; `fingerprint` is compared."""

    scope: str
    key: str
    fingerprint: bytes

    def __post_init__(self) -> None:
        if len(self.scope) > MAX_SCOPE or "\0" in self.scope:
            # Not shown: it may be a token.
            raise ValueError(
                f"scope of an idempotency key: got {len(self.scope)} characters, takes up to {MAX_SCOPE} without NUL"
            )


def storable_scope(owner: str) -> str:
    """The scope for whoever it is: the same text, or its digest where it is longer than what is stored, or has
    characters that a database does not take."""
    if len(owner) <= MAX_SCOPE and owner.isprintable() and not owner.startswith(_DIGEST):
        return owner
    return _DIGEST + hashlib.sha256(owner.encode(errors="surrogatepass")).hexdigest()


class Fingerprint:
    """SHA-256 over method, path, query and body, the body as it streams.

    The bytes as they came: a client that retries sends the same ones. The same order written in another way, such as
    JSON with its members in another order, is another request.
    """

    def __init__(self, method: str, path: bytes, query: bytes) -> None:
        self._hash = hashlib.sha256()
        # Each with its length, so that nothing moves from one into the next unseen.
        for part in (method.upper().encode(), path, query):
            self._hash.update(len(part).to_bytes(4, "big"))
            self._hash.update(part)

    def body(self, piece: bytes) -> None:
        """The next piece of the body."""
        self._hash.update(piece)

    def digest(self) -> bytes:
        return self._hash.digest()
