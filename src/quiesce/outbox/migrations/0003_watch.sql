-- Waiting for events at the server: a relay with nothing to do asks once a moment, and not every few milliseconds.
-- Needs 0002. Run it in one transaction; a second run does nothing.

-- Returns what the lanes have that was not visible when each was last read (`seen`), as soon as there is any, and
-- nothing after `seconds`. It looks `every` so many seconds, and first after `pause`. The first row tells in `aggregate_id` the snapshot of the
-- look, and in `position` how many events there are; they follow, lane by lane and in the order of `position`. Where
-- they are more than `most`, or larger than `bytes`, they do not: a claim reads them page by page.
--
-- An event is one of them if its transaction was in progress in `seen`, or had not begun. Nothing is looked up while no
-- transaction has ended since the look before, and each that was in progress is looked for once, when it has ended.
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
                SELECT count(*) AS events, sum(octet_length(page.payload)) AS size FROM page
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

INSERT INTO quiesce_schema (version, name) VALUES (3, 'watch') ON CONFLICT DO NOTHING;
