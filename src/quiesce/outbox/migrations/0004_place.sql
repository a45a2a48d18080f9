-- Where the cursors belong to, within their cluster: a copy, or a restore beside the original, must not publish unnoticed.
-- Needs 0002. Run it in one transaction; a second run does nothing.

-- Of the database, which a copy changes, and of this table, which a restore into the same database changes.
ALTER TABLE outbox_control
    ADD COLUMN IF NOT EXISTS database_oid oid,
    ADD COLUMN IF NOT EXISTS table_oid    oid;

-- Cursors that are in use belong to where they stand now.
UPDATE outbox_control SET table_oid = 'outbox_control'::regclass,
    database_oid = (SELECT oid FROM pg_database WHERE datname = current_database())
WHERE system_identifier IS NOT NULL AND database_oid IS NULL;

INSERT INTO quiesce_schema (version, name) VALUES (4, 'place') ON CONFLICT DO NOTHING;
