"""The SQL of the row store, and why it keeps the order of a key with any number of relays.

**Claim.** One statement, one snapshot S. `taken` locks up to a page of waiting events in the order of `position`,
passing over those that somebody else has locked. An event of `taken` may be published only if no earlier event of
its key is still to be published by somebody else. `skipped` finds those earlier events: what waits in S, stands below
the top of the page, and is neither in `taken` nor in one of this store's own open claims (`$2`; this store publishes
its claims in the order in which it made them). It walks the same index, without locking: below the page only the gaps
that those claims leave, and within it only if a position is missing there. The caller drops the events of a skipped
key from the skipped position on. Their locks fall with the claim.

**Where it begins.** Nothing waits below `$4`; see `row_floor.py`. `skipped` begins there. `taken` begins at `$5`, which
may be higher: above the claims that this store has open. To try the lock of each of their events once more, claim after
claim, would be most of what a claim costs. What waits below `$5` and is not ours is found by `skipped`: it holds its
key back, and the caller begins the next claim at the floor.

Why a snapshot that grows old while the statement runs can only hold back, never let through. Let q be an event of
the same key as r, at a smaller position, and r in `taken`:

- q waits in S. Then it is in `taken`, or in our own claims, or in `skipped`, whatever happened to it since S: it may
  have been dispatched meanwhile, then r is held back for one claim without need. (`FOR UPDATE` under READ COMMITTED
  looks at the newest version of a row that changed after S and checks the conditions on it again, so a row that was
  dispatched after S never gets into `taken`. It can only leave `taken`, which makes `skipped` larger.)
- q is dispatched or dead in S. Dispatched never turns back, and it was recorded after the broker's ack. A dead letter
  does not hold its key; redriving it gives its place up.
- q is not visible in S: its writer committed after S was taken, or never will. r is visible in S, so r's writer
  committed before. Writers of one key exclude each other by a lock that is released after the commit became
  visible, and q's writer, having the smaller position, had it first; so q would be visible too. Writers that do not
  lock their aggregate have no order to keep.

What S does not see, such as a retry that is being recorded this moment, concerns q itself and not r: then q, the
first of its key, is offered a little early, once.

**Retries.** While a retry of a key is not due, `taken` passes over all events of that key, so a key in trouble fills no
page. Of the keys whose retries are due only the first `$6` have their turn, and the others are passed over too: with a
topic in trouble, retries may come due as fast as they are refused. NOT IN becomes a hash table that is asked row by
row: unlike a join it cannot change the order in which rows come, so no plan sorts the whole backlog first.

**Sizes.** A page ends early where its payloads, keys and headers exceed `$3` bytes, after one event at least, so that a
backlog of large events does not fill the relay's memory. Its tail falls with the claim too. The running sum is only
made when it is needed.

**Pause.** While an operator has paused the outbox, `taken` is empty. It is asked once a claim, of a table of one row.

**Other tables.** `row_mapping.py` puts another table's columns in. Where that table has no column for dead events, the
letters say which ones are dead, and one that was written after S is not seen, as nothing changed in the event's own
row. So the events taken are looked up once more, by `buried`: their locks are held by then, so whoever wrote a letter
has committed it.

**Plans.** The index on waiting events delivers the order, so a page costs a page, whatever the statistics say about a
table whose content turns over all day. The settings of `begin` keep the planner from believing otherwise, and spare it
from planning each page anew. A plan for any `$1` takes the page for a tenth of the backlog and would make hash tables
of that size, for every claim; hence the second, constant limit. OFFSET 0 keeps the walks through the gaps from becoming
a join that walks all of the index.
"""

# ruff: noqa: S608 - what is put in are names that `row_table.quoted` has quoted, and words of our own
from dataclasses import dataclass
from functools import cache

from quiesce.postgres.claim_limits import SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumns:
    """Where the statements find what they need. All are SQL: names, or expressions over a row `e` of the table."""

    table: str
    parked: str
    position: str
    id: str
    key: str
    topic: str
    type: str
    payload: str
    headers: str
    """A jsonb object whose values are text."""
    dispatched_at: str
    created_at: str | None = None
    """A time of the database's clock. None: there is none for sure."""
    dead_at: str | None = None
    """None: dead letters are known by their letters alone."""
    paused: str | None = None
    """Whether an operator has paused the outbox."""
    floor: bool = False
    """Whether a transaction has its number before it takes a position."""


OWN = RowColumns(
    table="outbox_event",
    parked="outbox_parked",
    position="e.position",
    id="e.id",
    key="e.aggregate_id",
    topic="e.topic",
    type="e.type",
    payload="e.payload",
    headers="e.headers",
    dispatched_at="dispatched_at",
    created_at="e.created_at",
    dead_at="dead_at",
    paused="coalesce((SELECT paused_at IS NOT NULL FROM outbox_control), false)",
    floor=True,
)
"""The table that this package's migrations make."""

MAX_PAGE = 5000
"""The bound that the statement of a claim has written out."""


@dataclass(frozen=True, slots=True)
class RowStatements:
    claim: str
    """Three kinds of rows: events taken, as `EventRow`; without an id, a key held back from a position on; without a
    key, how often the event at a position has failed before."""
    survey: str | None
    """What `Floor.surveyed` takes. One statement, so one snapshot. None where there is no floor."""
    buried: str | None
    """Which of these positions have died. None where the event itself says so."""
    mark: str
    delete: str
    """In place of a mark, where no history is wanted."""
    bury: str | None
    """None where the letter in `outbox_parked` is all."""
    park: str
    """`$1` is a JSON array of objects. `wait` is null for a dead letter; `counts` is 0 for a retry that is no
    attempt."""
    age: str | None = None
    """How many seconds ago an event that waits was created, by its position. None where nobody can say."""


@cache
def statements(of: RowColumns) -> RowStatements:
    """The statements of one table: made once, so that they are prepared once a connection."""
    waits = f"e.{of.dispatched_at} IS NULL" + (f" AND e.{of.dead_at} IS NULL" if of.dead_at else "")
    not_buried = (
        "" if of.dead_at else f"AND {of.position} NOT IN (SELECT position FROM {of.parked} WHERE state = 'dead')"
    )
    over = f"""
WITH over AS (
    DELETE FROM {of.parked} WHERE state = 'retry' AND position = ANY ($1::text::bigint[])
)""".strip()
    return RowStatements(
        claim=_claim(of, waits, not_buried),
        survey=_survey(of, waits) if of.floor else None,
        buried=None
        if of.dead_at
        else f"SELECT position FROM {of.parked} WHERE state = 'dead' AND position = ANY ($1::text::bigint[])",
        age=of.created_at
        and f"""
SELECT extract(epoch FROM clock_timestamp() - {of.created_at})::float8 FROM {of.table} AS e
WHERE {of.position} = $1 AND {waits}
""",
        mark=f"""
{over}
UPDATE {of.table} AS e SET {of.dispatched_at} = statement_timestamp()
WHERE {of.position} = ANY ($1::text::bigint[]) AND {waits}
""",
        delete=f"""
{over}
DELETE FROM {of.table} AS e WHERE {of.position} = ANY ($1::text::bigint[]) AND {waits}
""",
        bury=of.dead_at
        and f"""
UPDATE {of.table} AS e SET {of.dead_at} = statement_timestamp()
WHERE {of.position} = ANY ($1::text::bigint[]) AND {waits}
""",
        park=f"""
INSERT INTO {of.parked} AS parked (event_id, position, key, reason, state, attempts, next_at)
SELECT event_id, position, key, reason, CASE WHEN wait IS NULL THEN 'dead' ELSE 'retry' END, counts,
    statement_timestamp() + wait * interval '1 second'
FROM json_to_recordset($1::text::json)
    AS given(event_id uuid, position bigint, key text, reason text, wait float8, counts integer)
ON CONFLICT (event_id) DO UPDATE SET
    reason = excluded.reason, state = excluded.state, next_at = excluded.next_at,
    attempts = parked.attempts + excluded.attempts, created_at = CASE
        WHEN excluded.state = 'dead' AND parked.state <> 'dead' THEN statement_timestamp() ELSE parked.created_at END
""",
    )


def _claim(of: RowColumns, waits: str, not_buried: str) -> str:
    return f"""
WITH retries AS MATERIALIZED (
    SELECT position, key, attempts, next_at FROM {of.parked} WHERE state = 'retry'
), passed_over AS MATERIALIZED (
    SELECT key FROM (
        SELECT key, max(next_at) AS due_at, row_number() OVER (ORDER BY max(next_at), key) AS turn
        FROM retries GROUP BY key
    ) AS keys WHERE due_at > now() OR turn > $6
), taken AS MATERIALIZED (
    SELECT *, {SIZE} AS bytes FROM (
        SELECT {of.position} AS position, {of.id} AS id, {of.key} AS aggregate_id, {of.topic} AS topic,
            {of.type} AS type, {of.payload} AS payload, {of.headers} AS headers
        FROM {of.table} AS e
        WHERE {waits} AND {of.position} >= $5 AND {of.key} NOT IN (SELECT key FROM passed_over)
            {not_buried} {f"AND NOT {of.paused}" if of.paused else ""}
        ORDER BY {of.position} LIMIT $1
        FOR UPDATE SKIP LOCKED
    ) AS page LIMIT {MAX_PAGE}
), skipped AS (
    SELECT e.aggregate_id, e.position
    FROM unnest(int8multirange(int8range($4, $5)) - $2::text::int8multirange) AS gap
    CROSS JOIN LATERAL (
        SELECT {of.key} AS aggregate_id, {of.position} AS position
        FROM {of.table} AS e
        WHERE {waits} AND {of.position} >= lower(gap) AND {of.position} < upper(gap)
            AND {of.key} NOT IN (SELECT key FROM passed_over)
            {not_buried}
        OFFSET 0
    ) AS e
    UNION ALL
    SELECT {of.key}, {of.position}
    FROM {of.table} AS e
    WHERE {waits} AND {of.position} >= $5
        AND {of.position} < (
            SELECT CASE WHEN max(position) - min(position) = count(*) - 1 THEN min(position) ELSE max(position) END
            FROM taken
        )
        AND NOT $2::text::int8multirange @> {of.position}::bigint
        AND {of.position} NOT IN (SELECT position FROM taken)
        AND {of.key} NOT IN (SELECT key FROM passed_over)
        {not_buried}
)
SELECT position, id::text, aggregate_id, topic, type, payload, NULLIF(headers, '{{}}'::jsonb) AS headers, 0 AS attempts
FROM taken
WHERE CASE
    WHEN (SELECT sum(bytes) FROM taken) <= $3 THEN true
    ELSE position <= (
        SELECT coalesce(max(position) FILTER (WHERE total <= $3), min(position))
        FROM (SELECT position, sum(bytes) OVER (ORDER BY position) AS total FROM taken) AS sized
    )
END
UNION ALL
SELECT position, NULL, aggregate_id, NULL, NULL, NULL, NULL, 0
FROM skipped
UNION ALL
SELECT position, NULL, NULL, NULL, NULL, NULL, NULL, attempts
FROM retries WHERE position IN (SELECT position FROM taken)
"""


def _survey(of: RowColumns, waits: str) -> str:
    return f"""
SELECT pg_snapshot_xmin(snapshot)::text AS xmin, pg_current_xact_id_if_assigned()::text AS own, (
    SELECT min({of.position}) FROM {of.table} AS e
    WHERE {waits} AND {of.position} >= $1
) AS first
FROM pg_current_snapshot() AS snapshot
"""
