"""Reading pages of lanes, and events set aside, into the memory of their owner."""

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quiesce.outbox.cursor import Cursor, Snapshot
from quiesce.outbox.event import ClaimedEvent
from quiesce.postgres import log_statements as sql
from quiesce.postgres.event_rows import EventRow, events_of, plain
from quiesce.postgres.log_connections import LogConnections
from quiesce.postgres.log_lane import LaneLog
from quiesce.postgres.log_parked import Parked
from quiesce.postgres.log_statements import array

_LANE = 7
"""The place of the column."""


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

    def others(self, lanes: Iterable[int]) -> frozenset[int]:
        """Those of these lanes that it has nothing of."""
        return frozenset(lanes).difference(page.log.lane for page in self.pages)


async def read(connections: LogConnections, logs: Sequence[LaneLog], limit: int, max_bytes: int) -> Pages:
    """The first `limit` events of these lanes, lane by lane; less where they are large."""
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
        record_class=EventRow,
    )
    return pages_of(logs, cursors, rows, limit)


def pages_of(logs: Sequence[LaneLog], cursors: Sequence[Cursor], rows: Sequence[Any], limit: int) -> Pages:
    """What `sql.READ` has answered, and `outbox_watch` in the same form; fetched as `EventRow`."""
    count, snapshot = rows[0][0], rows[0][2]
    until = Snapshot.parse(snapshot)
    full = count >= limit or count > len(rows) - 1
    pages: list[Page] = []
    begin = 1
    for log, cursor in zip(logs, cursors, strict=True):
        end = _end_of_lane(rows, begin, log.lane)
        events = events_of(list(rows[begin:end]))
        begin = end
        # Lanes are read to their ends one after the other; the last one that gave something may have more.
        last = full and end == len(rows)
        pages.append(Page(log, cursor, events, complete=not last))
        if last:
            break
    if begin != len(rows):
        # A page that is taken for empty moves its cursor over what it had.
        raise RuntimeError(f"{len(rows) - begin} rows of a page belong to no lane that was asked for, or not in turn")
    return Pages(until, pages, full)


def _end_of_lane(rows: Sequence[Any], begin: int, lane: int) -> int:
    """Rows of one lane stand together. A backlog has whole pages of one."""
    if begin == len(rows) or rows[begin][_LANE] != lane:
        return begin
    if rows[-1][_LANE] == lane:
        return len(rows)
    return bisect(rows, False, begin, key=lambda row: row[_LANE] != lane)


async def read_parked(
    connections: LogConnections, due: Sequence[tuple[LaneLog, Parked]]
) -> list[tuple[LaneLog, Parked, ClaimedEvent | None]]:
    """The events of rows that are set aside; None for one that somebody has deleted."""
    if not due:
        return []
    rows = await connections.fetch(
        sql.DUE, array(log.lane for log, _ in due), array(parked.position for _, parked in due)
    )
    found = {(row[_LANE], row[0]): row for row in rows}
    return [
        (log, parked, None if (row := found.get((log.lane, parked.position))) is None else plain(row, parked.attempts))
        for log, parked in due
    ]
