-- The log store: events that are never updated, and one cursor a lane. Needs 0001.
-- Run it in one transaction; a second run does nothing.

-- How far each lane has been read. `seen` and `last` are the cursor: a snapshot, and the highest position ever read.
-- `until` and `at` are set while there are more late events than one page holds: the snapshot they are read
-- under, and the position reached.
CREATE TABLE IF NOT EXISTS outbox_lane (
    lane       smallint    PRIMARY KEY CHECK (lane BETWEEN 0 AND 15),
    -- Raised by every new owner. An update by an owner that was replaced meanwhile finds no row.
    epoch      bigint      NOT NULL DEFAULT 0,
    -- Nothing is visible in the first one.
    seen       pg_snapshot NOT NULL DEFAULT '1:1:',
    last       bigint      NOT NULL DEFAULT 0,
    until      pg_snapshot,
    at         bigint,
    -- Events that left by this lane, in total.
    dispatched bigint      NOT NULL DEFAULT 0,
    -- For people and for `doctor`; ownership is a lock and not a row. Of the database's clock.
    moved_at   timestamptz,
    owner      text,
    owned_at   timestamptz,
    CHECK ((until IS NULL) = (at IS NULL))
)
-- Sixteen rows that are updated all the time: room on the page keeps the updates out of the index.
WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, vacuum_truncate = false);

INSERT INTO outbox_lane (lane) SELECT generate_series(0, 15) ON CONFLICT DO NOTHING;

-- Events of a transaction that was open when its lane was read: found by its number, in the order of position.
CREATE INDEX IF NOT EXISTS outbox_event_xid ON outbox_event (lane, xid, position);

-- What holds for the whole outbox. One row.
CREATE TABLE IF NOT EXISTS outbox_control (
    single            boolean     PRIMARY KEY DEFAULT true CHECK (single),
    -- Which kind of store works here; set by the first that opens it. Both at once would send twice.
    store             text        CHECK (store IN ('row', 'log')),
    -- The cluster and the history that the cursors belong to. Transaction numbers of another one mean nothing here.
    system_identifier bigint,
    timeline          integer,
    -- Set: relays claim nothing.
    paused_at         timestamptz,
    paused_by         text,
    paused_why        text,
    CHECK ((paused_at IS NULL) = (paused_by IS NULL))
);

INSERT INTO outbox_control DEFAULT VALUES ON CONFLICT DO NOTHING;

-- What operators did: who, when, and to how many events.
CREATE TABLE IF NOT EXISTS outbox_audit (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    done_at timestamptz NOT NULL DEFAULT now(),
    -- The database's user, and whom the operator said to be.
    who     text        NOT NULL DEFAULT session_user,
    said_by text,
    verb    text        NOT NULL,
    detail  jsonb       NOT NULL DEFAULT '{}',
    events  bigint      NOT NULL
);

-- What is due, and what holds a key, in one lane.
CREATE INDEX IF NOT EXISTS outbox_parked_waiting ON outbox_parked (lane, position) WHERE state <> 'dead';
CREATE INDEX IF NOT EXISTS outbox_parked_due ON outbox_parked (lane, next_at) WHERE state = 'retry';

INSERT INTO quiesce_schema (version, name) VALUES (2, 'log') ON CONFLICT DO NOTHING;
