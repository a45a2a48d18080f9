"""What events are on their way out: all of a call, the headers of one, its bytes in a batch. Pure."""

from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter

from quiesce.outbox.event import ClaimedEvent

NOT_FOR_KAFKA = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What an event's own data raises that is not what it should be. It must cost this event, and no other."""

Headers = dict[str, str | bytes | None]

_OUTGOING = attrgetter("outgoing")
_TOPIC = itemgetter(2)

_FRAME = 68 + 40 + 6
"""Bytes in a batch of one record, at least, beside key, value, type and the user's headers: the frames of batch
and record, the header `id`, the name of the header `type`."""

_KINDS: Mapping[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


class Lot:
    """The events of one call, and what goes out of each, by its place: it is asked for once, since a relay pays for
    whatever is done with an event a hundred thousand times a second."""

    __slots__ = ("events", "outgoing", "topics")

    def __init__(self, events: Sequence[ClaimedEvent]) -> None:
        self.events = events
        self.outgoing = list(map(_OUTGOING, events))
        self.topics = frozenset(map(_TOPIC, self.outgoing))


def size_of(event: ClaimedEvent) -> int:
    """Bytes that the event takes in a batch of its own, at least: text counts one byte a character."""
    return _FRAME + content_of(event)


def content_of(event: ClaimedEvent) -> int:
    """The same without any frame."""
    size = len(event.payload or b"") + len(event.aggregate_id) + len(event.type)
    if event.headers:
        size += sum(2 + len(name) + len(value) for name, value in event.headers.items())
    return size


def wrong_header(event: ClaimedEvent) -> str | None:
    """Which header of its own is no text, in words: whoever writes with plain SQL may write a number, or null."""
    headers: Mapping[str, object] = event.headers
    for name, value in headers.items():
        if not isinstance(value, (str, bytes)):
            return f"the value of header {name!r} is {_KINDS.get(type(value), 'something else')}, takes text"
    return None


def headers_of(event: ClaimedEvent) -> Headers:
    """Its own headers, and ours, which nobody can replace."""
    # Ours first, in the order in which all other events have them.
    ours = {"id": event.id_text, "type": event.type}
    return {**ours, **event.headers, **ours}
