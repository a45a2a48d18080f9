"""The headers of a record that was set aside, waits for another try, or was redriven. Pure.

All of them begin with `quiesce-`. They are replaced on each pass and never pile up: a record that goes round a
hundred times has as many headers as one that went once. Headers of the record's own stay as they are.

Handlers copy headers: what they write about a record may go out with that record's. So `quiesce-topic` says which topic
the others were written for, and on any other topic, or without it, they mean nothing.

Whoever may produce to a topic can write all of them. So a consumer believes them only where it is told that a topic is
its retry topic (`came_back`), and an operator's commands only in the topic that they are given as dead letters.
"""

from collections.abc import Callable
from typing import NamedTuple

from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Record

PREFIX = "quiesce-"

TOPIC = "quiesce-topic"
"""The topic that these headers were written for."""
REASON = "quiesce-reason"
ERROR = "quiesce-error"
MESSAGE = "quiesce-message"
TRIES = "quiesce-tries"
CONSUMER = "quiesce-consumer"
ORIGIN_TOPIC = "quiesce-origin-topic"
ORIGIN_PARTITION = "quiesce-origin-partition"
ORIGIN_OFFSET = "quiesce-origin-offset"
ORIGIN_TIME = "quiesce-origin-time"
"""Milliseconds since the epoch, as Kafka has it; missing where the origin had none."""
_ORIGIN = frozenset({ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET, ORIGIN_TIME})
NOT_BEFORE = "quiesce-not-before"
"""Milliseconds since the epoch."""
CUT = "quiesce-cut"
"""What had to be left out for the topic's size limit."""
REDRIVES = "quiesce-redrives"
"""How often the record was sent back to where it came from."""
REDRIVEN_FROM = "quiesce-redriven-from"

LONGEST_WAIT = 7 * 86_400.0
"""Seconds after a record's own timestamp beyond which no not-before is believed: headers are the producer's to
write, and one with a slip in its unit must not hold its key for centuries."""

LONGEST_MESSAGE = 1000
"""Bytes of the message; those of a name are a fifth of it."""
SHORT_MESSAGE = 100
"""The same where the record hardly fits."""

Headers = tuple[tuple[str, bytes | None], ...]


class Origin(NamedTuple):
    """Where a record was first read, whatever retry and dead-letter topics it went through since."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


def not_before(record: Record) -> float | None:
    """Seconds since the epoch before which it should not be tried; None if it may be tried at once."""
    milliseconds = _number(record, NOT_BEFORE)
    if milliseconds is None:
        return None
    at = milliseconds / 1000
    return min(at, record.timestamp + LONGEST_WAIT) if record.timestamp > 0 else at


def tries(record: Record) -> int:
    """How many attempts at it have failed so far, on topics it came through."""
    return _number(record, TRIES) or 0


def redrives(record: Record) -> int:
    """How often it was sent back from the dead letters."""
    return _number(record, REDRIVES) or 0


def origin(record: Record) -> Origin:
    """Where it was first read: of a record that came no detour, its own place."""
    topic = _ours(record, ORIGIN_TOPIC)
    partition = _number(record, ORIGIN_PARTITION)
    offset = _number(record, ORIGIN_OFFSET)
    if not topic or partition is None or offset is None:
        return Origin(record.topic, record.partition, record.offset)
    return Origin(topic, partition, offset)


def came_back(record: Record, retry_topic_of: Callable[[str], str] | None) -> bool:
    """Whether it stands in the retry topic of where it says that it was first read.

    Args:
        retry_topic_of: from a source topic to its retry topic; None where there is no retry topic.
    """
    first = None if retry_topic_of is None else _ours(record, ORIGIN_TOPIC)
    if not first or first == record.topic or retry_topic_of is None:
        return False
    try:
        return retry_topic_of(first) == record.topic
    except Exception:  # noqa: BLE001 - a name that is none of its own, such as a KeyError: then it is not from there
        return False


def believed(record: Record, retry_topic_of: Callable[[str], str] | None) -> Record:
    """The record as it may be given on: with what our headers say if it `came_back`, else without them.

    Only the count of redrives stays: a redriven record stands in its source topic again.
    """
    if came_back(record, retry_topic_of) or all(not name.startswith(PREFIX) for name, _ in record.headers):
        return record
    headers = without_ours(record.headers)
    if before := redrives(record):
        headers = (*headers, (TOPIC, record.topic.encode()), (REDRIVES, _text(before)))
    place = record.topic, record.partition, record.offset
    return Record(*place, record.key, record.value, headers, record.timestamp, record.source)


def with_reason(
    record: Record, reason: Reason, topic: str, *, until: float | None = None, longest_message: int = LONGEST_MESSAGE
) -> Headers:
    """The record's headers with reason and origin, for a topic. `until`: the not-before of its next try, epoch seconds.

    The origin stays that of the first pass. The rest of what an earlier pass wrote is replaced.
    """
    first = origin(record)
    ours = [
        (TOPIC, topic.encode()),
        (REASON, cut(reason.code, longest_message // 5)),
        (ERROR, cut(reason.error, longest_message // 5)),
        (MESSAGE, cut(reason.message, longest_message)),
        (TRIES, _text(reason.tries)),
        (CONSUMER, cut(reason.consumer, longest_message // 5)),
        (ORIGIN_TOPIC, first.topic.encode()),
        (ORIGIN_PARTITION, _text(first.partition)),
        (ORIGIN_OFFSET, _text(first.offset)),
    ]
    written = _number(record, ORIGIN_TIME) if first.topic != record.topic else None
    if written is None and record.timestamp > 0:
        written = round(record.timestamp * 1000)
    if written is not None:
        ours.append((ORIGIN_TIME, _text(written)))
    if until is not None:
        # Rounded up: a record is never due before it was to be.
        ours.append((NOT_BEFORE, _text(-int(-until * 1000 // 1))))
    if before := redrives(record):
        ours.append((REDRIVES, _text(before)))
    return (*without_ours(record.headers), *ours)


def for_redrive(record: Record, topic: str, *, keep_origin: bool = False) -> Headers:
    """The headers of a dead letter on its way back to a topic: its own, how often it went, and from where.

    Its tries begin anew. Its origin is where it now goes; `keep_origin`: it does not go where it was first read, and
    still has to say where that was.
    """
    place = f"{record.topic}[{record.partition}]@{record.offset}"
    kept = [header for header in record.headers if keep_origin and header[0] in _ORIGIN]
    return (
        *without_ours(record.headers),
        *kept,
        (TOPIC, topic.encode()),
        (REDRIVES, _text(redrives(record) + 1)),
        (REDRIVEN_FROM, place.encode()),
    )


def without_ours(headers: Headers) -> Headers:
    """The headers that are not about reason, origin and waiting."""
    return tuple(header for header in headers if not header[0].startswith(PREFIX))


def cut(text: str, longest: int) -> bytes:
    """The text in UTF-8, at most so many bytes, cut between two characters, with an ellipsis where it was cut."""
    # A lone surrogate may stand in a message made of foreign bytes.
    encoded = text.encode(errors="replace")
    if len(encoded) <= longest:
        return encoded
    mark = "…".encode()
    return encoded[: max(0, longest - len(mark))].decode(errors="ignore").encode() + mark


def _text(number: int) -> bytes:
    return str(number).encode()


def _ours(record: Record, name: str) -> str | None:
    """One of our headers, if it was written for the topic that the record is in."""
    text = record.header(name)
    return text if text is not None and record.header(TOPIC) == record.topic else None


def _number(record: Record, name: str) -> int | None:
    text = _ours(record, name)
    # At most 15 digits: what is longer is no offset and no time, and may be meant to take long to read.
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 15 else None
