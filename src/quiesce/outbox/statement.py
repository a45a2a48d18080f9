"""The INSERT that every adapter's `enqueue` sends, and any other language may write by hand."""

import json
from collections.abc import Sequence
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
    headers = json.dumps(event.stored_headers(), separators=(",", ":"))
    return Statement(INSERT, (event.id, event.topic, event.aggregate_id, event.type, payload, headers))


class BatchStatement(NamedTuple):
    """SQL with `$1`-style placeholders, one array a column, and the arrays in that order."""

    sql: str
    values: tuple[list[UUID], list[str], list[str], list[str], list[bytes | None], list[str]]


# One statement whatever the number: one round trip, and the rows get their positions in the order of the arrays.
# Measured: as fast as COPY up to hundreds of events, a quarter slower at a thousand; a third of executemany.
# COPY asks for the columns' types first, and an application's own codec for jsonb would spoil the headers.
INSERT_MANY = (
    "INSERT INTO outbox_event (id, topic, aggregate_id, type, payload, headers) "
    "SELECT id, topic, aggregate_id, type, payload, headers::jsonb "
    "FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[]) WITH ORDINALITY "
    "AS event (id, topic, aggregate_id, type, payload, headers, place) ORDER BY place"
)


def batch_statement(events: Sequence[OutboxEvent], max_event_bytes: int = MAX_EVENT_BYTES) -> BatchStatement:
    """The statement that enqueues `events`, in their order, after checking every one.

    Raises:
        EnqueueError: see `OutboxEvent.check`.
    """
    columns: BatchStatement = BatchStatement(INSERT_MANY, ([], [], [], [], [], []))
    ids, topics, keys, types, payloads, headers = columns.values
    for event in events:
        values = statement(event, max_event_bytes).values
        ids.append(values[0])
        topics.append(values[1])
        keys.append(values[2])
        types.append(values[3])
        payloads.append(values[4])
        headers.append(values[5])
    return columns
