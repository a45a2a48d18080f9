"""Reading pages of lanes, and events set aside, into the memory of their owner."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from quiesce.outbox.cursor import Cursor, Snapshot
from quiesce.outbox.event import ClaimedEvent
from quiesce.postgres import log_statements as sql
from quiesce.postgres.log_connections import LogConnections
from quiesce.postgres.log_lane import LaneLog
from quiesce.postgres.log_parked import Parked
from quiesce.postgres.log_statements import array

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Page:
    """What one lane had. `complete`: nothing is left of what was visible."""

    log: LaneLog
    cursor: Cursor
    """Where it was read from."""
    events: list[ClaimedEvent]
    complete: bool


@dataclass(frozen=True, slots=True)
class Pages:
    until: Snapshot
    pages: Sequence[Page]
    full: bool
    """Whether more may be waiting."""


async def read(connections: LogConnections, logs: Sequence[LaneLog], limit: int, max_bytes: int) -> Pages:
    """The first `limit` events of these lanes, lane by lane; less where their payloads are large."""
    cursors = [log.reading for log in logs]
    rows = await connections.fetch(
        sql.READ,
        array(log.lane for log in logs),
        array(cursor.last for cursor in cursors),
        array(cursor.at or 0 for cursor in cursors),
        array(cursor.seen.xmax for cursor in cursors),
        array(array(cursor.seen.in_progress) for cursor in cursors),
        array(cursor.until for cursor in cursors),
        limit,
        max_bytes,
    )
    return _pages(logs, cursors, rows, limit)


def _pages(logs: Sequence[LaneLog], cursors: Sequence[Cursor], rows: Sequence[Any], limit: int) -> Pages:
    head, found = rows[0], rows[1:]
    until = Snapshot.parse(head[3])
    full = head[1] >= limit or head[1] > len(found)
    events: dict[int, list[ClaimedEvent]] = {
        lane: [
            ClaimedEvent(
                position,
                event_id,
                key,
                topic,
                kind,
                payload,
                _NO_HEADERS if headers is None else json.loads(headers),
            )
            for _, position, event_id, key, topic, kind, payload, headers in part
        ]
        for lane, part in groupby(found, key=itemgetter(0))
    }
    pages = []
    for log, cursor in zip(logs, cursors, strict=True):
        of_lane = events.pop(log.lane, [])
        # Lanes are read to their ends one after the other; the last one that gave something may have more.
        last = full and not events
        pages.append(Page(log, cursor, of_lane, complete=not last))
        if last:
            break
    return Pages(until, pages, full)


async def read_parked(
    connections: LogConnections, due: Sequence[tuple[LaneLog, Parked]]
) -> list[tuple[LaneLog, Parked, ClaimedEvent | None]]:
    """The events of rows that are set aside; None for one that somebody has deleted."""
    if not due:
        return []
    rows = await connections.fetch(
        sql.DUE, array(log.lane for log, _ in due), array(parked.position for _, parked in due)
    )
    found = {(row[0], row[1]): row for row in rows}
    read: list[tuple[LaneLog, Parked, ClaimedEvent | None]] = []
    for log, parked in due:
        row = found.get((log.lane, parked.position))
        event = None
        if row is not None:
            _, position, event_id, key, topic, kind, payload, headers = row
            event = ClaimedEvent(
                position, event_id, key, topic, kind, payload, json.loads(headers) or _NO_HEADERS, parked.attempts
            )
        read.append((log, parked, event))
    return read
