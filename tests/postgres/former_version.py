"""What the version before this one sent to the database, word for word: schema version 1. Kept as data; nothing of it
is to be brought up to date.
"""

from quiesce.postgres.row_statements import RowStatements

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
SURVEY = """
SELECT pg_snapshot_xmin(snapshot)::text AS xmin, pg_current_xact_id_if_assigned()::text AS own, (
    SELECT min(position) FROM outbox_event
    WHERE dispatched_at IS NULL AND dead_at IS NULL AND position >= $1
) AS first
FROM pg_current_snapshot() AS snapshot
"""
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
INSERT = (
    "INSERT INTO outbox_event (id, topic, aggregate_id, type, payload, headers) "
    "VALUES ($1, $2, $3, $4, $5, $6::text::jsonb)"
)
INSERT_MANY = (
    "INSERT INTO outbox_event (id, topic, aggregate_id, type, payload, headers) "
    "SELECT id, topic, aggregate_id, type, payload, headers::jsonb "
    "FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[]) WITH ORDINALITY "
    "AS event (id, topic, aggregate_id, type, payload, headers, place) ORDER BY place"
)

STATEMENTS = RowStatements(claim=CLAIM, survey=SURVEY, buried=None, mark=MARK, delete=MARK, bury=BURY, park=PARK)
