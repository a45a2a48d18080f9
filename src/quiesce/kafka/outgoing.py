"""What an event is on its way out: headers, and bytes in a batch. Pure."""

from quiesce.outbox.event import ClaimedEvent

Headers = dict[str, str | bytes | None]

_FRAME = 68 + 40 + 6
"""Bytes in a batch of one record, at least, beside key, value, type and the user's headers: the frames of batch
and record, the header `id`, the name of the header `type`."""


def size_of(event: ClaimedEvent) -> int:
    """What the event takes in a batch of its own, at least: text counts one byte a character."""
    size = _FRAME + len(event.payload or b"") + len(event.aggregate_id) + len(event.type)
    if event.headers:
        size += sum(2 + len(name) + len(value) for name, value in event.headers.items())
    return size


def headers_of(event: ClaimedEvent) -> Headers:
    """Its own headers, and ours, which nobody can replace."""
    # Ours first, in the order in which all other events have them.
    ours = {"id": event.id_text, "type": event.type}
    return {**ours, **event.headers, **ours}
