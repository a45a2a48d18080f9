"""What waits, in SQL: how much of it, how long, and which events. For people and for metrics, not for relays.

An event waits from its commit until it is dispatched or dead; one that is set aside as `retry` or `held` waits too.

In the row store that is what the event's own columns say. In the log store it follows from the cursor of its lane
(see 0002_log.sql). An event has been read if it stands at or below `last` and is visible in `seen`, or stands at or
below `at` and is visible in `until`; all others wait, and so do the parked ones. What has not been read is of two
kinds, and both are found by an index: new ones stand above `last`; late ones below it, of a transaction that is in
progress in `seen` or not before its end. These look-ups go by (xid, position), which the primary key cannot answer: a
planner with the choice would walk it up to `last`.
"""

from collections.abc import Mapping

from quiesce.outbox.schema_steps import StoreKind
from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.lane_rows import newest

_STORE = "SELECT store FROM outbox_control"
_HAS_CURSORS = "SELECT EXISTS (SELECT FROM outbox_lane WHERE last > 0 OR moved_at IS NOT NULL)"


async def recorded_store(connection: AnyConnection) -> StoreKind | None:
    """The kind of store that the table belongs to; None before any has opened it."""
    kind: StoreKind | None = await connection.fetchval(_STORE)
    return kind


async def store_of(connection: AnyConnection) -> StoreKind:
    """The kind of store whose columns say what waits here. Before any has worked both say the same."""
    kind = await recorded_store(connection)
    if kind is not None:
        return kind
    return "log" if await connection.fetchval(_HAS_CURSORS) else "row"


ROW_COUNT = """
SELECT count(*) AS events, min(created_at) FILTER (WHERE place = 1) AS oldest,
    coalesce(min(position), 0) AS lowest, coalesce(max(position), 0) AS highest
FROM (
    SELECT position, created_at, row_number() OVER (ORDER BY position) AS place
    FROM outbox_event WHERE dispatched_at IS NULL AND dead_at IS NULL ORDER BY position LIMIT $1
) AS page
"""
"""Counts up to `$1` events that wait, from the lowest position on."""

_NOT_YET = "(l.until IS NULL OR e.position > l.at OR NOT pg_visible_in_snapshot(e.xid, l.until))"


def _late(also: str, most: str, among: str) -> str:
    """The late events of a lane `l` for which `also` holds: `most` of each transaction that was in progress.

    Those of transactions that had not begun are looked for among the first `among` rows of such: theirs are the
    smallest numbers, while behind them comes the whole backlog.
    """
    return f"""
        SELECT e.* FROM pg_snapshot_xip(l.seen) AS running (xid) CROSS JOIN LATERAL (
            SELECT e.* FROM outbox_event AS e
            WHERE e.lane = l.lane AND (e.xid, e.position) > (running.xid, 0)
                AND (e.xid, e.position) <= (running.xid, l.last) AND {_NOT_YET} AND {also}
            ORDER BY e.xid, e.position LIMIT {most}
        ) AS e
        UNION ALL
        SELECT e.* FROM (
            SELECT * FROM outbox_event AS later
            WHERE later.lane = l.lane AND later.xid >= pg_snapshot_xmax(l.seen)
            ORDER BY later.xid, later.position LIMIT {among}
        ) AS e WHERE e.position <= l.last AND {_NOT_YET} AND {also}
    """  # noqa: S608 - pieces of our own


LOG_COUNT = f"""
SELECT l.lane, new.events + late.events AS events, late.events AS late, least(new.oldest, late.oldest) AS oldest,
    new.lowest, new.highest
FROM unnest($2::text::smallint[]) AS wanted (lane) CROSS JOIN LATERAL {newest("wanted.lane")} AS l
CROSS JOIN LATERAL (
    SELECT count(*) AS events, min(created_at) FILTER (WHERE place = 1) AS oldest, count(*) = $1 AS capped,
        coalesce(min(position), 0) AS lowest, coalesce(max(position), 0) AS highest
    FROM (
        SELECT position, created_at, row_number() OVER (ORDER BY position) AS place FROM outbox_event AS e
        WHERE e.lane = l.lane AND e.position > l.last ORDER BY position LIMIT $1
    ) AS page
) AS new
CROSS JOIN LATERAL (
    SELECT count(*) AS events, min(created_at) AS oldest FROM ({_late("NOT new.capped", "$1", "ALL")}) AS late
) AS late
"""  # noqa: S608 - pieces of our own
"""Counts up to `$1` new events of each of the lanes `$2`, and the late ones of those that have fewer."""

PARKED_COUNT = "SELECT state, count(*) AS events FROM outbox_parked GROUP BY state"

PARKED_OLDEST = """
SELECT min(e.created_at) FROM outbox_parked AS p JOIN outbox_event AS e ON e.id = p.event_id
WHERE p.state IN ('retry', 'held')
"""

HIGHEST = """
SELECT coalesce(max(top.position), 0) FROM generate_series(0, 15) AS number CROSS JOIN LATERAL (
    SELECT position FROM outbox_event AS e WHERE e.lane = number ORDER BY position DESC LIMIT 1
) AS top
"""
"""The last position in the table."""

_SHOWN = """e.id, e.aggregate_id AS key, e.lane, e.topic, e.type, e.created_at, octet_length(e.payload) AS size,
    CASE WHEN $5 THEN e.payload END AS payload, CASE WHEN $5 THEN e.headers::text END AS headers"""
_MATCHES = """($1::text IS NULL OR e.aggregate_id = $1) AND ($2::text IS NULL OR e.topic = $2)
    AND ($3::smallint IS NULL OR e.lane = $3) AND ($1::text IS NULL OR e.lane = outbox_lane($1))"""

ROW_PEEK = f"""
SELECT {_SHOWN}, coalesce(p.state, 'waiting') AS state, p.attempts, p.next_at, p.created_at AS parked_at, p.reason
FROM outbox_event AS e LEFT JOIN outbox_parked AS p ON p.event_id = e.id
WHERE e.dispatched_at IS NULL AND e.dead_at IS NULL AND {_MATCHES}
ORDER BY e.position LIMIT $4
"""  # noqa: S608 - pieces of our own
"""The first `$4` events that wait. `$1` is a key, `$2` a topic, `$3` a lane; each may be null. `$5`: with payloads."""

LOG_PEEK = f"""
SELECT {_SHOWN}, e.state, e.attempts, e.next_at, e.parked_at, e.reason FROM (
    SELECT unread.*, 'waiting' AS state, NULL::integer AS attempts, NULL::timestamptz AS next_at,
        NULL::timestamptz AS parked_at, NULL::text AS reason
    FROM outbox_lane AS l
    CROSS JOIN LATERAL (
        (
            SELECT e.* FROM outbox_event AS e
            WHERE e.lane = l.lane AND e.position > l.last AND {_MATCHES} ORDER BY e.position LIMIT $4
        )
        UNION ALL
        (
            SELECT e.* FROM ({_late(_MATCHES, "$4", "10000")}) AS e ORDER BY e.position LIMIT $4
        )
    ) AS unread
    WHERE ($3::smallint IS NULL OR l.lane = $3) AND ($1::text IS NULL OR l.lane = outbox_lane($1))
    UNION ALL
    SELECT e.*, p.state, p.attempts, p.next_at, p.created_at, p.reason
    FROM outbox_parked AS p JOIN outbox_event AS e ON e.id = p.event_id
    WHERE p.state IN ('retry', 'held') AND {_MATCHES}
) AS e
ORDER BY e.position LIMIT $4
"""  # noqa: S608 - pieces of our own
"""The same for the log store."""

_READ = (
    "(e.position <= l.last AND pg_visible_in_snapshot(e.xid, l.seen)) "
    "OR (l.until IS NOT NULL AND e.position <= l.at AND pg_visible_in_snapshot(e.xid, l.until))"
)

EVERY_EVENT: Mapping[StoreKind, str] = {
    "row": """
SELECT e.*, e.dispatched_at IS NOT NULL AS dispatched, e.dead_at IS NOT NULL AS dead FROM outbox_event AS e
""",
    "log": f"""
SELECT e.*, p.event_id IS NULL AND ({_READ}) AS dispatched, p.state IS NOT DISTINCT FROM 'dead' AS dead
FROM outbox_event AS e JOIN outbox_lane AS l USING (lane) LEFT JOIN outbox_parked AS p ON p.event_id = e.id
""",  # noqa: S608 - pieces of our own
}
"""Every event of the table with what became of it: `dispatched`, `dead`, or neither. It reads all, so it is for audits
and for tables that are small."""
