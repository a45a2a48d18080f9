"""Rows of `outbox_event` as asyncpg brings them, handed on as the events that they are.

A relay moves a hundred thousand of them a second. An object of ours beside each row would cost as much as decoding
it, and once more in the interpreter's garbage collection, which looks through all that was made and still lives.
"""

import json
from collections.abc import Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import Any
from uuid import UUID

import asyncpg

from quiesce.outbox.event import ClaimedEvent, PlainEvent

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

# jsonb nests deeper than Python reads, and such a row must cost its own event only. This is no text either.
_TOO_DEEP: Mapping[str, Any] = MappingProxyType({"(nested too deep)": {}})

HEADERS = 6
"""The place of the column with the headers, as JSON; NULL where there are none."""


def _column(place: int | slice) -> Any:
    return property(itemgetter(place))


class EventRow(asyncpg.Record):
    """A `ClaimedEvent` without headers that has not failed before. Its columns begin with those of `plain`."""

    __slots__ = ()

    position = _column(0)
    id_text = _column(1)
    outgoing = _column(slice(1, HEADERS + 1))
    aggregate_id = _column(2)
    topic = _column(3)
    type = _column(4)
    payload = _column(5)
    headers = NO_HEADERS
    attempts = 0

    @property
    def id(self) -> UUID:
        return UUID(self[1])


def plain(row: Any, attempts: int = 0) -> PlainEvent:
    """The event of a row: position, id as text, key, topic, type, payload, headers as JSON or NULL."""
    position, event_id, key, topic, kind, payload, headers = row[:7]
    return PlainEvent(
        position,
        UUID(event_id),
        key,
        topic,
        kind,
        payload,
        NO_HEADERS if headers is None else _headers(headers),
        attempts,
    )


def _headers(text: str) -> Mapping[str, str]:
    """Values of whatever kind plain SQL has put there: whoever publishes refuses what is no text."""
    try:
        # Python makes no whole number of more than 4,300 digits, jsonb does.
        return json.loads(text, parse_int=float) or NO_HEADERS
    except RecursionError:
        return _TOO_DEEP


def events_of(rows: list[Any]) -> list[ClaimedEvent]:
    """The events of rows that were fetched as `EventRow`, none of which has failed before."""
    for row in rows:
        if row[HEADERS] is not None:
            return [row if row[HEADERS] is None else plain(row) for row in rows]
    return rows
