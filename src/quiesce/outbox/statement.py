"""The INSERT that every adapter's `enqueue` sends, and any other language may write by hand."""

import json
from typing import NamedTuple
from uuid import UUID

from quiesce.outbox.event import MAX_EVENT_BYTES, OutboxEvent


class Statement(NamedTuple):
    """SQL with `$1`-style placeholders, and its values in that order."""

    sql: str
    values: tuple[UUID, str, str, str, bytes | None, str]


# By way of text: where the application has a codec of its own for jsonb, a value that is sent as jsonb would be
# encoded a second time, and headers would arrive as one JSON string.
INSERT = (
    "INSERT INTO outbox_event (id, topic, aggregate_id, type, payload, headers) "
    "VALUES ($1, $2, $3, $4, $5, $6::text::jsonb)"
)


def statement(event: OutboxEvent, max_event_bytes: int = MAX_EVENT_BYTES) -> Statement:
    """The statement that enqueues `event`, after checking it.

    Raises:
        EnqueueError: see `OutboxEvent.check`.
    """
    payload = event.check(max_event_bytes)
    headers = json.dumps(dict(event.headers), separators=(",", ":"))
    return Statement(INSERT, (event.id, event.topic, event.aggregate_id, event.type, payload, headers))
