"""The statements about idempotency keys. `$1` is the scope and `$2` the key, wherever there is one."""

# Everybody tries this lock before the row, and nobody waits for it. So whoever comes second learns at once that the
# first is at it, although the first's row is not committed yet: an insert of the same key would wait for that, and hold
# its connection meanwhile. What makes a key unique is the row. Two keys with one hash wait for each other, no more.
_LOCK = "pg_try_advisory_xact_lock(hashtextextended($2::text, hashtextextended($1::text, 0)))"

TAKE = f"""
WITH lock AS MATERIALIZED (SELECT {_LOCK} AS ours), made AS (
    INSERT INTO idempotency_key (scope, key, fingerprint, owner, leased_till, expires_at)
    SELECT $1::text, $2::text, $3::bytea, $4::text::uuid,
        clock_timestamp() + $5::float8 * interval '1 second', clock_timestamp() + $6::float8 * interval '1 second'
    FROM lock WHERE ours
    ON CONFLICT (scope, key) DO NOTHING RETURNING 1
)
SELECT ours, EXISTS (SELECT FROM made) AS made FROM lock
"""  # noqa: S608 - pieces of our own
"""Claims a key that has no row. `$3` is the fingerprint, `$4` the owner, `$5` the lease or NULL, `$6` how long the key
is kept, in seconds. `ours` and not `made`: there is a row."""

# A claim without a lease is never committed by us: it ends with its transaction. One that can be seen was committed by
# its handler, past us, and so was what that had done by then. Nobody may do it once more, until the key expires.
_HELD_TILL = "coalesce(leased_till, expires_at)"

LOOK = f"""
SELECT fingerprint = $3::bytea AS same, state, status, headers::text AS headers, body, not_kept,
    expires_at <= clock_timestamp() AS expired,
    state = 'claimed' AND {_HELD_TILL} > clock_timestamp() AS leased
FROM idempotency_key WHERE scope = $1::text AND key = $2::text
"""  # noqa: S608 - pieces of our own

TAKE_OVER = f"""
WITH free AS MATERIALIZED (
    SELECT scope, key, expires_at <= clock_timestamp() AS expired FROM idempotency_key
    WHERE scope = $1::text AND key = $2::text
        AND CASE state WHEN 'claimed' THEN {_HELD_TILL} ELSE expires_at END <= clock_timestamp()
    -- Whoever is in the middle of its transaction holds the row, lease or not.
    FOR UPDATE SKIP LOCKED
)
UPDATE idempotency_key AS k SET fingerprint = $3::bytea, owner = $4::text::uuid,
    leased_till = clock_timestamp() + $5::float8 * interval '1 second',
    expires_at = clock_timestamp() + $6::float8 * interval '1 second', created_at = now(),
    attempt = CASE WHEN free.expired THEN 1 ELSE k.attempt + 1 END,
    state = 'claimed', status = NULL, headers = NULL, body = NULL, not_kept = NULL
FROM free WHERE k.scope = free.scope AND k.key = free.key
RETURNING k.attempt
"""  # noqa: S608 - pieces of our own
"""Claims a key whose row has expired, or whose owner has let its lease run out. Takes what `TAKE` takes."""

_MINE = "scope = $1::text AND key = $2::text AND owner = $3::text::uuid AND state = 'claimed'"

FENCE = f"SELECT 1 FROM idempotency_key WHERE {_MINE} FOR UPDATE"  # noqa: S608
"""A row if the claim of `$3` still holds. From then on nobody can take it over before the transaction ends."""

RENEW = f"""
UPDATE idempotency_key SET leased_till = clock_timestamp() + $4::float8 * interval '1 second' WHERE {_MINE} RETURNING 1
"""  # noqa: S608

SETTLE = f"""
UPDATE idempotency_key SET state = CASE WHEN $7::text IS NULL THEN 'answered' ELSE 'done' END, leased_till = NULL,
    status = $4::int2, headers = $5::text::jsonb, body = $6::bytea, not_kept = $7::text
WHERE {_MINE} RETURNING 1
"""  # noqa: S608
"""`$4` is the status, `$5` the headers as JSON, `$6` the body, `$7` why it is not kept or NULL."""

FREE = f"DELETE FROM idempotency_key WHERE {_MINE} RETURNING 1"  # noqa: S608

PRUNE = """
WITH old AS MATERIALIZED (
    SELECT scope, key FROM idempotency_key
    WHERE expires_at <= clock_timestamp() AND leased_till > clock_timestamp() IS NOT TRUE
    ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
DELETE FROM idempotency_key AS k USING old WHERE k.scope = old.scope AND k.key = old.key
"""
"""Deletes the `$1` keys that expired first. Several may do it at once."""
