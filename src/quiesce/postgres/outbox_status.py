"""How an outbox stands: what waits, since when, what is set aside, who owns the lanes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from quiesce.outbox.schema_steps import StoreKind
from quiesce.postgres import waiting as sql
from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.lane_rows import EVERY
from quiesce.postgres.log_statements import array
from quiesce.postgres.operating import TIMEOUT, short_transaction
from quiesce.postgres.pausing import Paused, paused

COUNT_TO = 100_000
"""Beyond so many events a number is estimated: counting them exactly costs a walk over all."""


@dataclass(frozen=True, slots=True)
class Count:
    """A number of events, and whether it was counted or estimated."""

    events: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.events:,}" if self.exact else f"about {self.events:,}"


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of the log store. Ownership is a lock, so `owner` is None where nobody has it, whatever the row says."""

    number: int
    owner: str | None
    epoch: int
    owned_at: datetime | None
    moved_at: datetime | None
    dispatched: int
    waiting: Count


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """`oldest` is the age, in seconds, of the event that has waited longest; None where none waits."""

    at: datetime
    """Of the database's clock."""
    store: StoreKind | None
    paused: Paused | None
    waiting: Count
    oldest: float | None
    dispatched: Count
    """Row store: those still in the table. Log store: those that left by it, ever."""
    parked: Mapping[str, int]
    lanes: Sequence[Lane]


# Who has the lock of a lane; lane_statements.py tells which lock that is.
_LANES = f"""
SELECT lane, CASE WHEN locked THEN coalesce(owner, 'a relay') END AS owner, epoch, owned_at, moved_at, dispatched
FROM {EVERY} AS lanes CROSS JOIN LATERAL (
    SELECT EXISTS (
        SELECT FROM pg_locks AS held
        WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 2 AND held.objid::bigint = lane
            AND held.classid = 'outbox_lane'::regclass::oid
            AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ) AS locked
) AS held ORDER BY lane
"""  # noqa: S608 - a piece of our own
_DISPATCHED = "SELECT count(*) FROM (SELECT FROM outbox_event WHERE dispatched_at IS NOT NULL LIMIT $1) AS page"
# Before the first ANALYZE there is no estimate; then the positions tell how many there may be.
_ROWS = """
SELECT CASE WHEN reltuples > 0 THEN reltuples::bigint ELSE (
    SELECT max(edge.highest) - min(edge.lowest) + 1 FROM generate_series(0, 15) AS number CROSS JOIN LATERAL (
        SELECT max(position) AS highest, min(position) AS lowest FROM outbox_event AS e WHERE e.lane = number
    ) AS edge
) END FROM pg_class WHERE oid = 'outbox_event'::regclass
"""


async def status(connection: AnyConnection, *, count_to: int = COUNT_TO, timeout: float = TIMEOUT) -> OutboxStatus:
    """Reads it in one transaction, within `timeout` seconds a statement. It locks nothing."""
    async with short_transaction(connection, readonly=True, seconds=timeout):
        at = await connection.fetchval("SELECT statement_timestamp()")
        kind = await sql.store_of(connection)
        parked = {"retry": 0, "held": 0, "dead": 0}
        parked.update((row["state"], row["events"]) for row in await connection.fetch(sql.PARKED_COUNT))
        highest = await connection.fetchval(sql.HIGHEST)
        lanes: list[Lane] = []
        if kind == "row":
            waiting, oldest = await _count_rows(connection, count_to, highest)
            dispatched = await _count_dispatched(connection, count_to, waiting.events + parked["dead"])
        else:
            lanes, oldest = await _count_lanes(connection, count_to, highest)
            aside = parked["retry"] + parked["held"]
            waiting = Count(
                sum(lane.waiting.events for lane in lanes) + aside, all(lane.waiting.exact for lane in lanes)
            )
            since = await connection.fetchval(sql.PARKED_OLDEST) if aside else None
            oldest = min((time for time in (oldest, since) if time is not None), default=None)
            dispatched = Count(sum(lane.dispatched for lane in lanes))
        age = None if oldest is None else max(0.0, (at - oldest).total_seconds())
        return OutboxStatus(
            at,
            await sql.recorded_store(connection),
            await paused(connection),
            waiting,
            age,
            dispatched,
            parked,
            lanes,
        )


async def _count_rows(connection: AnyConnection, count_to: int, highest: int) -> tuple[Count, datetime | None]:
    row = await connection.fetchrow(sql.ROW_COUNT, count_to + 1)
    assert row is not None, "an aggregate always has a row"
    return _extended(row["events"], count_to, row["lowest"] - 1, row["highest"], highest), row["oldest"]


async def _count_lanes(connection: AnyConnection, count_to: int, highest: int) -> tuple[list[Lane], datetime | None]:
    rows = await connection.fetch(_LANES)
    counted: dict[int, asyncpg.Record] = {}
    each, more = 0, [row["lane"] for row in rows]
    while more:
        # What lanes with few events leave over goes to those with many, so that a hot one is counted as well.
        share = (count_to - sum(row["events"] for row in counted.values())) // len(more)
        if counted and share <= 0:
            break
        each += max(1, share)
        counted.update((row["lane"], row) for row in await connection.fetch(sql.LOG_COUNT, each + 1, array(more)))
        more = [lane for lane in more if counted[lane]["events"] > each]
    lanes: list[Lane] = []
    for row in rows:
        found = counted[row["lane"]]
        waiting = Count(found["events"])
        if row["lane"] in more:
            # Late events stand anywhere: nothing follows from them for the rest.
            new = _extended(found["events"] - found["late"], each, found["lowest"] - 1, found["highest"], highest)
            waiting = Count(new.events + found["late"], exact=False)
        lanes.append(
            Lane(row["lane"], row["owner"], row["epoch"], row["owned_at"], row["moved_at"], row["dispatched"], waiting)
        )
    return lanes, min((found["oldest"] for found in counted.values() if found["oldest"] is not None), default=None)


async def _count_dispatched(connection: AnyConnection, count_to: int, others: int) -> Count:
    counted: int = await connection.fetchval(_DISPATCHED, count_to + 1)
    if counted <= count_to:
        return Count(counted)
    return Count(max(counted, await connection.fetchval(_ROWS) - others), exact=False)


def _extended(counted: int, count_to: int, below: int, reached: int, highest: int) -> Count:
    """The count, or where it was broken off the number there would be if the rest were as dense.

    Positions above `below`, up to `reached`, were counted; `highest` is the last one given out.
    """
    if counted <= count_to:
        return Count(counted)
    per_position = counted / max(1, reached - below)
    return Count(counted + round(max(0, highest - reached) * per_position), exact=False)
