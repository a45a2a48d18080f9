-- The outbox: events that wait for the relay, and events it has set aside.
-- Needs PostgreSQL 14 or newer. Run it in one transaction; a second run does nothing.

CREATE TABLE IF NOT EXISTS quiesce_schema (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- The lane of a key, 0 to 15: the first byte of SHA-256 of the key, modulo 16.
-- Why SHA-256: lanes are stored, so the function must give the same on every version, platform and collation,
-- which PostgreSQL does not promise for hashtext(); md5() is refused by servers in FIPS mode; and every language
-- can compute it. It costs an insert 0.8 microseconds. A byte is never negative, so the modulo is not either.
-- Why decode(replace()): convert_to() is not immutable, and a cast to bytea reads backslashes.
-- Why a function, which PostgreSQL inlines anyway: an UPDATE reads the text of a generated column's expression
-- anew for every row, used or not, and the long form made marking rows a third slower.
CREATE OR REPLACE FUNCTION outbox_lane(key text) RETURNS smallint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (get_byte(sha256(decode(replace(key, E'\\', E'\\\\'), 'escape')), 0) % 16)::smallint;

CREATE TABLE IF NOT EXISTS outbox_event (
    -- The event's identity everywhere. After a failover with loss positions repeat, this does not.
    id            uuid        NOT NULL,
    -- The transaction that wrote it: what a reader of the log needs to find late commits. It stands before
    -- `position`, so that a transaction has its number before it takes a place: whoever knows a place, and sees that all
    -- transactions with numbers up to now have ended, has seen whatever there will be up to that place.
    xid           xid8        NOT NULL DEFAULT pg_current_xact_id(),
    -- Its place in the table; never leaves the database. With CACHE 1 no session hoards numbers, so two
    -- writers that exclude each other get positions in the order of their turns.
    position      bigint      GENERATED ALWAYS AS IDENTITY (CACHE 1),
    -- The slice of keys it belongs to.
    lane          smallint    NOT NULL GENERATED ALWAYS AS (outbox_lane(aggregate_id)) STORED,
    -- The Kafka key: events of one aggregate are published in the order of `position`.
    aggregate_id  text        NOT NULL CHECK (aggregate_id <> ''),
    topic         text        NOT NULL CHECK (topic <> ''),
    type          text        NOT NULL CHECK (type <> ''),
    -- The value as it goes to Kafka; NULL is a tombstone.
    payload       bytea,
    -- Headers of the event's own: an object whose values are text.
    headers       jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
    created_at    timestamptz NOT NULL DEFAULT now(),
    -- Set by the row store. The log store never updates an event.
    dispatched_at timestamptz,
    -- Set by the row store together with a dead letter in outbox_parked, so that a claim need not walk over
    -- dead letters again and again.
    dead_at       timestamptz,
    -- The order in which the log store reads, and the identity of a row for logical replication. The row
    -- store would do with any key, so the table serves both, and neither needs it rewritten.
    PRIMARY KEY (lane, position)
)
-- The tail of the table is full of dead row versions all the time: clean up early and often. Truncating the
-- file would lock out the writers for a moment, to win space that is needed again at once.
WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    vacuum_truncate = false
);

-- The same event twice is refused where the writer can still act.
CREATE UNIQUE INDEX IF NOT EXISTS outbox_event_id ON outbox_event (id);

-- What the row store claims from: only events that wait, so dispatched and dead ones cost a claim nothing. No
-- index leads with the key: the claim finds what it must hold back in a second walk over the same range.
-- The log store needs neither this index nor this mark; it brings (lane, xid) in a migration of its own, which
-- is an index more to build and no rewrite, and which would cost every insert here for nothing.
CREATE INDEX IF NOT EXISTS outbox_event_waiting ON outbox_event (position)
    WHERE dispatched_at IS NULL AND dead_at IS NULL;

-- Events set aside. A row is written in the transaction that moves past its event.
CREATE TABLE IF NOT EXISTS outbox_parked (
    event_id   uuid        PRIMARY KEY,
    position   bigint      NOT NULL,
    -- NULL: parked by the row store.
    lane       smallint,
    key        text        NOT NULL,
    -- retry: offered again from next_at on. held: waits behind another event of its key. dead: a dead letter.
    state      text        NOT NULL CHECK (state IN ('retry', 'held', 'dead')),
    reason     text        NOT NULL,
    attempts   integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    -- Of the database's clock.
    next_at    timestamptz CHECK ((state = 'retry') = (next_at IS NOT NULL)),
    created_at timestamptz NOT NULL DEFAULT now()
)
WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    vacuum_truncate = false
);

-- Pending retries are few, dead letters may be many: who asks for the former does not walk over the latter.
CREATE INDEX IF NOT EXISTS outbox_parked_retry ON outbox_parked (position) WHERE state = 'retry';

INSERT INTO quiesce_schema (version, name) VALUES (1, 'outbox') ON CONFLICT DO NOTHING;
