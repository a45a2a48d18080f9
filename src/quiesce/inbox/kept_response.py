"""What of a response is kept for a retry, and which responses are kept at all. Nothing here waits."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from quiesce.errors import SettingsError

Headers = tuple[tuple[bytes, bytes], ...]

KEPT_HEADERS = (
    "content-type",
    "content-encoding",
    "content-language",
    "content-location",
    "content-disposition",
    "location",
    "etag",
    "last-modified",
    "link",
    "deprecation",
    "sunset",
)
"""Headers that come back with a replay. Any other is of the moment, or of the first caller alone."""

NEVER_KEPT = frozenset(
    {
        # They belong to one caller.
        *("set-cookie", "www-authenticate", "authorization", "authentication-info", "proxy-authenticate"),
        # They belong to one connection or one message; the server makes them anew.
        *("connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "content-length", "date"),
    }
)


SENT_AGAIN = frozenset({307, 308})
"""Redirects that a client follows with the same method, body and key (RFC 9110, 15.4.8 and 15.4.9)."""


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """What a retry is answered. `body` is None where it could not be kept; then `not_kept` says why."""

    status: int
    headers: Headers
    body: bytes | None
    not_kept: str = ""


@dataclass(frozen=True, slots=True)
class ResponseRules:
    """Which responses are kept, and what of them.

    A 5xx never is: it says nothing of whether the next attempt succeeds. A 2xx and a 3xx are, but for 307 and 308:
    those ask for the same request, with the same key, at another address. Like a 4xx they are kept only where they came
    with an effect: after the handler's block in its transaction had ended well; a 4xx also where `kept_4xx` names it. A
    refusal without effect leaves its key free, so that the same key may be used for the corrected request.

    Args:
        headers: names of the headers that are kept, in any case.
        kept_4xx: statuses that a handler answers after an effect.
        max_bytes: of a body; one that is longer is not kept.
    """

    headers: Collection[str] = KEPT_HEADERS
    kept_4xx: Collection[int] = ()
    max_bytes: int = 1_048_576

    def __post_init__(self) -> None:
        refused = sorted(name for name in self.headers if name.lower() in NEVER_KEPT)
        if refused:
            raise SettingsError(f"kept headers: got {', '.join(refused)}, which belong to one caller or one connection")
        if wrong := sorted(status for status in self.kept_4xx if not 400 <= status <= 499):
            raise SettingsError(f"kept_4xx: got {wrong}, takes statuses from 400 to 499")
        if self.max_bytes < 0:
            raise SettingsError(f"max_response_bytes: got {self.max_bytes}, takes 0 or more")

    def keeps(self, status: int, effect: bool) -> bool:
        """Whether the key is used up by this answer. `effect`: the handler's block in its transaction ended well."""
        if status in SENT_AGAIN:
            return effect
        if 200 <= status <= 399:
            return True
        return 400 <= status <= 499 and (effect or status in self.kept_4xx)

    def response(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> KeptResponse:
        """What a retry is answered. `body` fits into `max_bytes`."""
        return KeptResponse(status, self._kept(headers), body)

    def mark(self, status: int, headers: Iterable[tuple[bytes, bytes]], why: str) -> KeptResponse:
        """What a retry is told of a response that could not be kept."""
        return KeptResponse(status, self._kept(headers), None, why)

    def _kept(self, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        names = {name.lower().encode() for name in self.headers}
        return tuple((bytes(name).lower(), bytes(value)) for name, value in headers if bytes(name).lower() in names)
