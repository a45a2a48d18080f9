-- What a cursor costs stays the same while former versions of its row cannot be cleaned up. Needs 0002. Run it in one transaction; a second run does nothing, and locks nothing.

-- One row a lane: rows are added by 0002, whose second run adds none, and by a restore that goes wrong.
CREATE OR REPLACE FUNCTION outbox_lane_once() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    there boolean;
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.lane = OLD.lane THEN
        RETURN NEW;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE lane = $1)', TG_RELID::regclass) INTO there USING NEW.lane;
    IF NOT there THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'INSERT' AND NEW.epoch = 0 AND NEW.last = 0 AND NEW.moved_at IS NULL THEN
        RETURN NULL;
    END IF;
    RAISE unique_violation USING MESSAGE = format('lane %s has its row in outbox_lane already', NEW.lane),
        HINT = 'To restore cursors over others, empty the table first.';
END
$$;

-- Whenever a row takes a new page, its key is compared with all former versions that have the same one: while a forgotten
-- transaction holds xmin, hundreds of thousands. So the key has a number beside the lane, which the owner raises from time
-- to time. To look for a row takes its highest number first: ... WHERE lane = 3 ORDER BY version DESC LIMIT 1. This waits
-- for settles that are under way and for whoever reads the table, and new ones wait for that. Writers of events do not.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'outbox_lane'::regclass AND attname = 'version') THEN
        RETURN;
    END IF;
    -- Relays stand still behind whoever waits here, so that is not to be for long.
    IF current_setting('lock_timeout') = '0' THEN
        PERFORM set_config('lock_timeout', '3s', true);
    END IF;
    ALTER TABLE outbox_lane ADD COLUMN version bigint NOT NULL DEFAULT 0,
        DROP CONSTRAINT outbox_lane_pkey, ADD PRIMARY KEY (lane, version);
    CREATE TRIGGER outbox_lane_once BEFORE INSERT OR UPDATE OF lane ON outbox_lane
        FOR EACH ROW EXECUTE FUNCTION outbox_lane_once();
    -- For what a subscription copies, too.
    ALTER TABLE outbox_lane ENABLE ALWAYS TRIGGER outbox_lane_once;
END
$$;

INSERT INTO quiesce_schema (version, name) VALUES (6, 'cursors') ON CONFLICT DO NOTHING;
