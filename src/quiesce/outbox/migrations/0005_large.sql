-- Keys of any length may be set aside, and a watch brings along no more than asked for where keys or headers are large. Needs 0003. Run it in one transaction; a second run does nothing.

-- Which events of a key are set aside. A B-tree on (key, position), as 0002 made it once, holds no key of more than some
-- 2,700 bytes: to set such an event aside failed, and the relay with it. (0002 makes it no more: with such a key in the
-- table a second run would fail.) To drop it waits for the claims of row stores that are open, and new ones wait for that.
-- Writers do not.
CREATE INDEX IF NOT EXISTS outbox_parked_of_key ON outbox_parked USING hash (key);
DROP INDEX IF EXISTS outbox_parked_key;

-- The same function as of 0003, but for what counts as the size of an event: its key and headers do, too.
CREATE OR REPLACE FUNCTION outbox_watch(
    lanes smallint[], seen pg_snapshot[], seconds float8, every float8, pause float8, most integer, bytes bigint
) RETURNS TABLE (
    lane smallint, "position" bigint, id uuid, aggregate_id text, topic text, type text, payload bytea, headers jsonb
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    ends_at timestamptz := clock_timestamp() + seconds * interval '1 second';
    looked_at timestamptz;
    before pg_snapshot;
    present pg_snapshot;
BEGIN
    LOOP
        IF pause > 0 THEN
            PERFORM pg_sleep(pause);
        END IF;
        pause := every;
        present := pg_current_snapshot();
        IF before IS NULL OR present::text <> before::text THEN
            looked_at := clock_timestamp();
            RETURN QUERY
            WITH page AS MATERIALIZED (
                SELECT wanted.lane, event.position, event.id, event.aggregate_id, event.topic, event.type,
                    event.payload, NULLIF(event.headers, '{}'::jsonb) AS headers
                FROM (
                    SELECT asked.lane, pg_snapshot_xmax(asked.seen) AS low, '18446744073709551615'::xid8 AS high
                    FROM unnest(lanes, seen) AS asked (lane, seen)
                    UNION ALL
                    SELECT asked.lane, running.xid, running.xid
                    FROM unnest(lanes, seen) AS asked (lane, seen)
                    CROSS JOIN LATERAL pg_snapshot_xip(asked.seen) AS running (xid)
                    WHERE pg_visible_in_snapshot(running.xid, present)
                        AND (before IS NULL OR NOT pg_visible_in_snapshot(running.xid, before))
                ) AS wanted
                CROSS JOIN LATERAL (
                    -- Comparisons of rows that begin with `xid`: see the statements of the log store. A statement may
                    -- see more than `present`, which is older.
                    SELECT * FROM outbox_event AS event
                    WHERE event.lane = wanted.lane
                        AND (event.xid, event.position) >= (wanted.low, 0)
                        AND (event.xid, event.position) <= (wanted.high, 9223372036854775807)
                        AND pg_visible_in_snapshot(event.xid, present)
                    ORDER BY event.xid, event.position LIMIT most + 1
                ) AS event
                LIMIT most + 1
            ), whole AS MATERIALIZED (
                SELECT count(*) AS events, sum(
                    coalesce(octet_length(page.payload), 0) + octet_length(page.aggregate_id) + CASE
                        WHEN pg_column_size(page.headers) > 256 THEN octet_length(page.headers::text)
                        ELSE coalesce(pg_column_size(page.headers), 0)
                    END
                ) AS size FROM page
            )
            SELECT NULL, whole.events, NULL, present::text, NULL, NULL, NULL, NULL FROM whole WHERE whole.events > 0
            UNION ALL (
                SELECT page.* FROM page, whole
                WHERE whole.events <= most AND coalesce(whole.size, 0) <= bytes
                ORDER BY page.lane, page.position
            );
            IF FOUND THEN
                RETURN;
            END IF;
            before := present;
            -- Many rows of a transaction that has not ended make a look slow. It must not be most of what is done.
            pause := greatest(every, 4 * extract(epoch FROM clock_timestamp() - looked_at));
        END IF;
        IF clock_timestamp() >= ends_at THEN
            RETURN;
        END IF;
    END LOOP;
END
$$;

INSERT INTO quiesce_schema (version, name) VALUES (5, 'large') ON CONFLICT DO NOTHING;
