"""What the log store of the version before this one sent to the database, word for word: schema version 5. Kept as
data; nothing of it is to be brought up to date.
"""

OWN = """
WITH mine AS MATERIALIZED (
    SELECT locked.objid::int8 AS lane
    FROM pg_locks AS badge JOIN pg_locks AS locked USING (pid, locktype, database, classid, objsubid, granted)
    WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND classid = 'outbox_lane'::regclass::oid
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND badge.objid = $1::text::int8::oid
), turn AS MATERIALIZED (
    SELECT lane FROM outbox_lane
    WHERE lane = ANY ($2::text::smallint[]) AND lane IN (SELECT lane FROM mine)
    ORDER BY lane FOR UPDATE
)
UPDATE outbox_lane SET epoch = epoch + 1, owner = $3::text, owned_at = statement_timestamp()
WHERE lane IN (SELECT lane FROM turn)
RETURNING lane, epoch
"""

SETTLE = """
WITH moved AS (
    UPDATE outbox_lane AS lane SET seen = given.seen, last = given.last, until = given.until, at = given.at,
        dispatched = given.dispatched, moved_at = clock_timestamp()
    FROM unnest(
        $1::text::smallint[], $2::text::bigint[], $3::text::pg_snapshot[], $4::text::bigint[], $5::text::pg_snapshot[],
        $6::text::bigint[], $7::text::bigint[], $8::text::bigint[]
    ) AS given (lane, epoch, seen, last, until, at, dispatched, sample)
    WHERE lane.lane = given.lane AND lane.epoch = given.epoch
        AND pg_snapshot_xmax(given.seen) <= pg_snapshot_xmax(pg_current_snapshot())
    RETURNING lane.lane, CASE WHEN given.sample IS NOT NULL THEN (
        SELECT extract(epoch FROM clock_timestamp() - event.created_at)::float8 FROM outbox_event AS event
        WHERE event.lane = given.lane AND event.position = given.sample
    ) END AS age
), parked AS (
    INSERT INTO outbox_parked AS parked (event_id, position, lane, key, state, reason, attempts, next_at)
    SELECT event_id, position, lane, key, state, reason, attempts, statement_timestamp() + wait * interval '1 second'
    FROM json_to_recordset($9::text::json) AS given(
        event_id uuid, position bigint, lane smallint, key text, state text, reason text, attempts int, wait float8)
    WHERE lane IN (SELECT lane FROM moved)
    ON CONFLICT (event_id) DO UPDATE SET state = excluded.state, reason = excluded.reason,
        attempts = excluded.attempts, next_at = excluded.next_at
), gone AS (
    DELETE FROM outbox_parked WHERE event_id = ANY ($10::text::uuid[]) AND lane IN (SELECT lane FROM moved)
)
SELECT lane, age FROM moved
"""

MOVE = SETTLE[SETTLE.index("UPDATE") : SETTLE.index("\n), parked")]

LANES = """
SELECT lane, epoch, seen::text, last, until::text, at, dispatched FROM outbox_lane
WHERE lane = ANY ($1::text::smallint[])
"""

AHEAD = """
SELECT count(*) FROM outbox_lane
WHERE pg_snapshot_xmax(seen) > pg_snapshot_xmax(pg_current_snapshot())
    OR pg_snapshot_xmax(until) > pg_snapshot_xmax(pg_current_snapshot())
"""
