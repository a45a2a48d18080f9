-- What a cursor costs stays the same while former versions of its row cannot be cleaned up. Needs 0002. Run it in one transaction; a second run does nothing.

-- A unique index looks at all former versions of a row whenever the row takes a new page: while a forgotten transaction
-- holds xmin, at hundreds of thousands. This waits for settles that are under way, and new ones wait for that; no relay
-- keeps the table locked for longer. Writers of events do not use it.
ALTER TABLE outbox_lane DROP CONSTRAINT IF EXISTS outbox_lane_pkey;

-- Equal entries stand in the order of the places that they lead to, so from the end the present version of a row comes
-- first: SELECT ... WHERE lane = 3 ORDER BY epoch DESC LIMIT 1.
CREATE INDEX IF NOT EXISTS outbox_lane_newest ON outbox_lane (lane, epoch);

-- One row a lane, as before: rows are added by 0002, and by a restore that goes wrong.
CREATE OR REPLACE FUNCTION outbox_lane_once() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    there boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE lane = $1)', TG_RELID::regclass) INTO there USING NEW.lane;
    IF there THEN
        RAISE unique_violation USING MESSAGE = format('lane %s has its row in outbox_lane already', NEW.lane),
            HINT = 'To restore cursors over others, empty the table first.';
    END IF;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER outbox_lane_once BEFORE INSERT ON outbox_lane
    FOR EACH ROW EXECUTE FUNCTION outbox_lane_once();

-- With no key of its own the table could not be written any more where it is published, as in FOR ALL TABLES.
ALTER TABLE outbox_lane REPLICA IDENTITY FULL;

INSERT INTO quiesce_schema (version, name) VALUES (6, 'cursors') ON CONFLICT DO NOTHING;
