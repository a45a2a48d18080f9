"""In which forms a record is offered to a dead-letter topic that may find it too large. Pure."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Record
from quiesce.inbox.retry_headers import CUT, SHORT_MESSAGE, Headers, with_reason, without_ours
from quiesce.kafka.partitions import murmur2

TooLarge = Literal["cut", "refuse"]

_KEPT = frozenset({"id", "type", "traceparent"})
"""Headers that stay when the others have to go: who it is, what it is, and where to look for it."""
_KEPT_BYTES = 200


class Form(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers
    cut: str
    """What was left out, for people and for the header; empty where nothing was."""


def forms(record: Record, reason: Reason, topic: str, too_large: TooLarge) -> Iterator[Form]:
    """First all of it; then with less and less, in the order in which it is missed least."""
    yield Form(record.key, record.value, with_reason(record, reason, topic), "")
    short = with_reason(record, reason, topic, longest_message=SHORT_MESSAGE)
    if len(reason.message) > SHORT_MESSAGE or len(reason.error) > SHORT_MESSAGE // 5:
        yield Form(record.key, record.value, short, "")
    if too_large == "refuse":
        return
    own = without_ours(record.headers)
    few = tuple(
        (name, value and value[:_KEPT_BYTES])
        for number, (name, value) in enumerate(own)
        if name in _KEPT and all(later != name for later, _ in own[number + 1 :])
    )
    ours = short[len(own) :]
    cut = "" if record.value is None else f"value of {len(record.value)} bytes"
    if cut:
        yield Form(record.key, None, (*own, *ours, _said(cut)), cut)
    if few != own:
        cut = _and(cut, f"{len(own) - len(few)} headers")
        yield Form(record.key, None, (*few, *ours, _said(cut)), cut)
    if record.key is not None:
        cut = _and(cut, f"key of {len(record.key)} bytes")
        yield Form(None, None, (*few, *ours, _said(cut)), cut)


def place_of(key: bytes, partitions: int) -> int | None:
    """The partition that a key goes to, where the record goes without it; None if their number is not known."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions if partitions else None


def _said(cut: str) -> tuple[str, bytes | None]:
    return CUT, cut.encode()


def _and(cut: str, more: str) -> str:
    return f"{cut}, {more}" if cut else more
