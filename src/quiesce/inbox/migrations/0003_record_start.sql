-- Starts of records: what each consumer has in hand of each partition, and what never ended. Needs 0001.
-- Run it in one transaction; a second run does nothing.

CREATE TABLE IF NOT EXISTS record_start (
    consumer      text COLLATE "C" NOT NULL,
    topic         text COLLATE "C" NOT NULL,
    partition     integer          NOT NULL,
    -- The process that wrote last. One that finds another here has to look for what that one left.
    owner         uuid             NOT NULL,
    -- What the owner has in hand: offsets from the first to the last of these, or nothing.
    first_offset  bigint,
    last_offset   bigint,
    -- What was in hand together when a process ended without a word: each of them counts one start.
    suspect_first bigint,
    suspect_last  bigint,
    -- What was in hand alone when a process ended: offset -> the owners that did.
    deaths        jsonb            NOT NULL DEFAULT '{}',
    changed_at    timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, topic, partition)
)
-- One row a partition, updated with each batch: with room on its page an update stays out of the index.
WITH (fillfactor = 20, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0, vacuum_truncate = false);

INSERT INTO quiesce_inbox_schema (version, name) VALUES (3, 'record_start') ON CONFLICT DO NOTHING;
