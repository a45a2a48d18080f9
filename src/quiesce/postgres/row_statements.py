"""The SQL of the row store, and why it keeps the order of a key with any number of relays.

**Claim.** One statement, one snapshot S. `taken` locks up to a page of waiting events in the order of `position`,
passing over those that somebody else has locked. An event of `taken` may be published only if no earlier event of
its key is still to be published by somebody else. `skipped` finds those earlier events: it walks the same range of
the same index again, without locking, and keeps what waits in S, stands below the top of the page, and is neither in
`taken` nor in one of this store's own open claims (`$2`; this store publishes its claims in the order in which it
made them). The caller drops the events of a skipped key from the skipped position on. Their locks fall with the claim.

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

**Retries.** While a retry of a key is not due, `taken` passes over all events of that key, so a key in trouble fills
no page. The subquery with NOT IN becomes a hash table that is asked row by row: unlike a join it cannot change the
order in which rows come, so no plan sorts the whole backlog first.

**Sizes.** A page ends early where its payloads exceed `$3` bytes, after one event at least, so that a backlog of large
events does not fill the relay's memory. Its tail falls with the claim too. The sum costs little, since the length of a
large value is known without fetching it; the running sum is only made when it is needed.

**Floor.** Nothing waits below `$4`; see `row_floor.py`.

**Plans.** The index on waiting events delivers the order, so a page costs a page, whatever the statistics say about a
table whose content turns over all day. The settings of `begin` keep the planner from believing otherwise, and spare it
from planning each page anew. A plan for any `$1` takes the page for a tenth of the backlog and would make hash tables
of that size, for every claim; hence the second, constant limit.
"""

from collections.abc import Iterable
from functools import cache


def array(numbers: Iterable[int]) -> str:
    """A bigint[] as text, which is how the statements take it: for an array asyncpg has to ask the server for its type,
    once a connection, in a query that takes longer than a claim."""
    return f"{{{','.join(map(str, numbers))}}}"


CLAIM = """
WITH retries AS MATERIALIZED (
    SELECT position, key, attempts, next_at > now() AS pending
    FROM outbox_parked WHERE state = 'retry'
), taken AS MATERIALIZED (
    SELECT * FROM (
        SELECT position, id, aggregate_id, topic, type, payload, headers, coalesce(octet_length(payload), 0) AS bytes
        FROM outbox_event
        WHERE dispatched_at IS NULL AND dead_at IS NULL
            AND position >= $4
            AND aggregate_id NOT IN (SELECT key FROM retries WHERE pending)
        ORDER BY position LIMIT $1
        FOR UPDATE SKIP LOCKED
    ) AS page LIMIT 5000
), skipped AS (
    SELECT aggregate_id, position
    FROM outbox_event
    WHERE dispatched_at IS NULL AND dead_at IS NULL
        AND position >= $4
        AND position < (SELECT max(position) FROM taken)
        AND position NOT IN (SELECT position FROM taken)
        AND position NOT IN (SELECT unnest($2::text::bigint[]))
        AND aggregate_id NOT IN (SELECT key FROM retries WHERE pending)
)
SELECT position, id, aggregate_id, topic, type, payload, NULLIF(headers, '{}'::jsonb) AS headers, 0 AS attempts
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
FROM retries WHERE NOT pending AND position IN (SELECT position FROM taken)
"""
"""Three kinds of rows: events taken; without an id, a key held back from a position on; without a key, how often
the event at a position has failed before."""

MAX_PAGE = 5000
"""The bound that the statement has written out."""

SURVEY = """
SELECT pg_snapshot_xmin(snapshot)::text AS xmin, pg_current_xact_id_if_assigned()::text AS own, (
    SELECT min(position) FROM outbox_event
    WHERE dispatched_at IS NULL AND dead_at IS NULL AND position >= $1
) AS first
FROM pg_current_snapshot() AS snapshot
"""
"""What `Floor.surveyed` takes. One statement, so one snapshot."""

MARK = """
WITH over AS (
    DELETE FROM outbox_parked WHERE state = 'retry' AND position = ANY ($1::text::bigint[])
)
UPDATE outbox_event SET dispatched_at = statement_timestamp()
WHERE position = ANY ($1::text::bigint[]) AND dispatched_at IS NULL AND dead_at IS NULL
"""

BURY = """
UPDATE outbox_event SET dead_at = statement_timestamp()
WHERE position = ANY ($1::text::bigint[]) AND dispatched_at IS NULL AND dead_at IS NULL
"""

PARK = """
INSERT INTO outbox_parked AS parked (event_id, position, key, reason, state, attempts, next_at)
SELECT event_id, position, key, reason, CASE WHEN wait IS NULL THEN 'dead' ELSE 'retry' END, 1,
    statement_timestamp() + wait * interval '1 second'
FROM json_to_recordset($1::text::json)
    AS given(event_id uuid, position bigint, key text, reason text, wait float8)
ON CONFLICT (event_id) DO UPDATE SET
    reason = excluded.reason, state = excluded.state, next_at = excluded.next_at, attempts = parked.attempts + 1
"""
"""`$1` is a JSON array of objects. `wait` is null for a dead letter."""


@cache
def begin(server_major: int, *, statement_timeout: float, claim_bound: float) -> str:
    """Opens a claim's transaction, with its limits. Seconds.

    They are SET LOCAL, so that they hold behind a pooler that hands the session to somebody else between
    transactions. `claim_bound` is enforced by the server, so that a relay that hangs lets go of its rows.
    """
    statement = max(1, round(statement_timeout * 1000))
    claim = max(1, round(claim_bound * 1000))
    limits = {
        "statement_timeout": statement,
        "idle_in_transaction_session_timeout": claim,
        # The statements walk an index in its order. The planner may think little of that while its statistics are
        # old, and a plan that is made anew for every page costs a quarter of a small claim.
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_sort": "off",
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
        # NOT IN asks a hash table as long as the planner believes that it fits into memory. Where it does not, a
        # claim would go through all pending retries for every event.
        "hash_mem_multiplier": "64",
    }
    if server_major >= 17:
        limits["transaction_timeout"] = claim
    settings = "; ".join(f"SET LOCAL {name} = {value}" for name, value in limits.items())
    return f"BEGIN ISOLATION LEVEL READ COMMITTED; {settings}"
