"""The SQL of the log store: how a page is read, and how what became of it is recorded.

**Read.** One statement for all lanes of a relay, so one snapshot S, which is returned with the page. Lanes are looked
at in the order in which they are given: a backlog gives a page of the first lane, and idle lanes cost a few probes of
an index each. Whatever is visible in S needs no further test, since a statement sees just that; only a lane that has
more late events than a page holds is read under an older snapshot, `until`. Three branches a lane:

- *new*: a range of the primary key `(lane, position)`.
- *late, then in progress*: one range of the index `(lane, xid, position)` for each transaction that was in progress in
  `seen`. As a comparison of rows that begins with `xid`, since the primary key can neither answer that nor give
  that order: a planner that may choose walks the primary key up to `last` and filters, which grows with the table.
- *late, then not begun*: transactions from `seen`'s xmax on, by the same index, fenced with OFFSET 0 and the position
  tested outside, for the same reason. What it walks is what was written since the lane was last read.

**Sizes.** A page ends early where its payloads, keys and headers exceed `$8` bytes, after one event at least. The
length of a large value is known without fetching it; for headers see `claim_limits`.

**Settle.** One statement, and so one transaction and one exchange with the server: it moves the cursors of all lanes
for which the epoch is still ours, and parks, changes and deletes the events set aside in these lanes and no others.
All values are absolute, so that it may be sent again when nobody knows whether it was carried out. One that was taken
for lost and is carried out behind later ones moves nothing back: `last` and `dispatched` never sink. A cursor ahead of
the server's own transaction numbers is refused: a server that forgot some would give them out once more.

**Versions.** Each settle leaves a former version of the row behind. While some forgotten transaction holds xmin these
cannot be cleaned up, and to find a row by its lane is to walk over all of them. So it is found by the primary key of
lane and `version`, and a settle now and then raises that by a `step` of one: see `lane_rows`.

**Beliefs.** What VACUUM and ANALYZE find in a table that is written all the time may be one row, or none. A planner who
believes in one row has no reason to look up entries of an index: it reads the whole, former versions and all, and keeps
that plan until the next ANALYZE. So nothing here joins a table by equality, which it may begin with either side:
it is a comparison of rows, which only an index answers, or a subquery with LIMIT, which only the other side can feed.
Nor does it care then which index: an event is looked up by the order that only the primary key has.
"""

from collections.abc import Iterable

from quiesce.postgres.claim_limits import SIZE
from quiesce.postgres.lane_rows import newest


def array(values: Iterable[object]) -> str:
    """An array as text, which is how the statements take it; see `row_statements.array`. None is NULL."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


_COLUMNS = """
event.position, event.id, event.aggregate_id, event.topic, event.type, event.payload, event.headers
"""


def _first_from(lane: str, position: str) -> str:
    """A subquery: the first event of a lane from a position on. Both are expressions of SQL."""
    by_position = f"WHERE one.lane = {lane} AND one.position >= {position} ORDER BY one.position LIMIT 1"
    return f"(SELECT one.* FROM outbox_event AS one {by_position})"  # noqa: S608 - a piece of our own


_AS_ROW = "position, id::text AS id, aggregate_id, topic, type, payload, NULLIF(headers, '{}'::jsonb) AS headers, lane"
"""What `EventRow` takes, and the lane."""

READ = f"""
WITH page AS MATERIALIZED (
    SELECT asked.place, asked.lane, part.*, {SIZE} AS bytes
    FROM unnest(
        $1::text::smallint[], $2::text::bigint[], $3::text::bigint[], $4::text::xid8[], $5::text::text[],
        $6::text::pg_snapshot[]
    ) WITH ORDINALITY AS asked (lane, last, at, xmax, running, until, place)
    CROSS JOIN LATERAL (
        (
            SELECT {_COLUMNS}
            FROM outbox_event AS event
            WHERE event.lane = asked.lane AND event.position > asked.last
                AND (asked.until IS NULL OR pg_visible_in_snapshot(event.xid, asked.until))
            ORDER BY event.position LIMIT $7
        ) UNION ALL (
            SELECT late.*
            FROM unnest(asked.running::xid8[]) AS running (xid)
            CROSS JOIN LATERAL (
                SELECT {_COLUMNS}
                FROM outbox_event AS event
                WHERE event.lane = asked.lane
                    AND (event.xid, event.position) > (running.xid, asked.at)
                    AND (event.xid, event.position) <= (running.xid, asked.last)
                    AND (asked.until IS NULL OR pg_visible_in_snapshot(event.xid, asked.until))
                ORDER BY event.xid, event.position LIMIT $7
            ) AS late
            WHERE asked.last > 0
        ) UNION ALL (
            SELECT {_COLUMNS}
            FROM (
                SELECT event.*
                FROM outbox_event AS event
                WHERE event.lane = asked.lane AND event.xid >= asked.xmax AND asked.last > 0
                OFFSET 0
            ) AS event
            WHERE event.position > asked.at AND event.position <= asked.last
                AND (asked.until IS NULL OR pg_visible_in_snapshot(event.xid, asked.until))
        )
        ORDER BY position LIMIT $7
    ) AS part
    ORDER BY asked.place LIMIT $7
)
SELECT count(*) AS position, NULL::text AS id, pg_current_snapshot()::text AS aggregate_id, NULL::text AS topic,
    NULL::text AS type, NULL::bytea AS payload, NULL::jsonb AS headers, NULL::smallint AS lane
FROM page
UNION ALL
(
    SELECT {_AS_ROW}
    FROM page
    LIMIT CASE
        WHEN (SELECT sum(bytes) FROM page) <= $8 THEN $7
        ELSE (
            SELECT greatest(1, count(*) FILTER (WHERE total <= $8))
            FROM (SELECT sum(bytes) OVER (ORDER BY place, position) AS total FROM page) AS sized
        )
    END
)
"""  # noqa: S608 - a piece of our own
"""The first row tells: the snapshot, and how many events the page had before it was cut for its size.
In one order: lane by lane, in the order of position."""

MAX_PAGE = 5000
"""Events of one page, at most."""

DUE = f"""
SELECT {_AS_ROW}
FROM (
    SELECT event.lane, {_COLUMNS.strip()}
    FROM unnest($1::text::smallint[], $2::text::bigint[]) AS due (lane, position)
    CROSS JOIN LATERAL {_first_from("due.lane", "due.position")} AS event
    WHERE event.position = due.position
) AS due
"""  # noqa: S608 - a piece of our own
"""Events set aside, by lane and position."""

SETTLE = f"""
WITH moved AS (
    UPDATE outbox_lane AS lane SET seen = given.seen, last = given.last, until = given.until, at = given.at,
        dispatched = given.dispatched, moved_at = clock_timestamp(), version = given.version + given.step
    FROM unnest(
        $1::text::smallint[], $2::text::bigint[], $3::text::pg_snapshot[], $4::text::bigint[], $5::text::pg_snapshot[],
        $6::text::bigint[], $7::text::bigint[], $8::text::bigint[], $9::text::bigint[], $10::text::bigint[]
    ) AS given (lane, epoch, seen, last, until, at, dispatched, sample, version, step)
    WHERE (lane.lane, lane.version) >= (given.lane, given.version)
        AND (lane.lane, lane.version) <= (given.lane, given.version + given.step)
        AND lane.epoch = given.epoch AND pg_snapshot_xmax(given.seen) <= pg_snapshot_xmax(pg_current_snapshot())
        AND lane.last <= given.last AND lane.dispatched <= given.dispatched
    RETURNING lane.lane, CASE WHEN given.sample IS NOT NULL THEN (
        SELECT extract(epoch FROM clock_timestamp() - event.created_at)::float8
        FROM {_first_from("given.lane", "given.sample")} AS event WHERE event.position = given.sample
    ) END AS age
), parked AS (
    INSERT INTO outbox_parked AS parked (event_id, position, lane, key, state, reason, attempts, next_at)
    SELECT event_id, position, lane, key, state, reason, attempts, statement_timestamp() + wait * interval '1 second'
    FROM json_to_recordset($11::text::json) AS given(
        event_id uuid, position bigint, lane smallint, key text, state text, reason text, attempts int, wait float8)
    WHERE lane IN (SELECT lane FROM moved)
    ON CONFLICT (event_id) DO UPDATE SET state = excluded.state, reason = excluded.reason,
        attempts = excluded.attempts, next_at = excluded.next_at, created_at = CASE
            WHEN excluded.state = 'dead' AND parked.state <> 'dead' THEN statement_timestamp()
            ELSE parked.created_at END
), gone AS (
    DELETE FROM outbox_parked WHERE event_id = ANY ($12::text::uuid[]) AND lane IN (SELECT lane FROM moved)
)
SELECT lane, age FROM moved
"""  # noqa: S608 - a piece of our own
"""Returns the lanes that are still ours, and how long the event at `sample`, one position or NULL a lane, has been
there."""

MOVE = SETTLE[SETTLE.index("UPDATE") : SETTLE.index("\n), parked")]
"""The same where nothing is set aside, as nearly always."""

LANES = f"""
SELECT present.lane, epoch, seen::text, last, until::text, at, dispatched, version
FROM unnest($1::text::smallint[]) AS wanted (lane) CROSS JOIN LATERAL {newest("wanted.lane")} AS present
"""  # noqa: S608 - a piece of our own

PARKED = f"""
SELECT lane, event_id, position, key, state, reason, attempts,
    extract(epoch FROM next_at - clock_timestamp())::float8 AS wait
FROM outbox_parked
WHERE lane = ANY ($1::text::smallint[]) AND state <> 'dead'
UNION ALL
SELECT dead.lane, dead.event_id, dead.position, dead.key, dead.state, dead.reason, dead.attempts, NULL
FROM outbox_parked AS dead
CROSS JOIN LATERAL {_first_from("dead.lane", "dead.position")} AS event
WHERE event.position = dead.position AND ($2::boolean OR cardinality($3::text::text[]) > 0)
    AND dead.lane = ANY ($1::text::smallint[]) AND dead.state = 'dead'
    AND ($2::boolean OR event.topic = ANY ($3::text::text[]))
ORDER BY lane, position
"""  # noqa: S608 - a piece of our own
"""What is set aside and holds its key. `$2`: every dead letter does; `$3`: those of these topics do. Dead letters may
be many, so nobody looks at them without need."""

HEADS = """
SELECT lane, event_id, position, key, state, reason, attempts,
    extract(epoch FROM next_at - clock_timestamp())::float8 AS wait
FROM outbox_parked
WHERE lane = ANY ($1::text::smallint[]) AND state = 'retry'
ORDER BY lane, next_at
"""
"""Pending retries, to see what operators did: redriven letters are new among them, discarded ones are missing."""

STILL_DEAD = "SELECT event_id FROM outbox_parked WHERE event_id = ANY ($1::text::uuid[]) AND state = 'dead'"

PAUSED = "SELECT coalesce(bool_or(paused_at IS NOT NULL), false) FROM outbox_control"
