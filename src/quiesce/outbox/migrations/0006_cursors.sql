-- What a cursor costs stays the same while former versions of its row cannot be cleaned up. Needs 0002. Run it in one transaction; a second run does nothing.

-- A unique index looks at all former versions of a row, whenever one of them takes a new page: while a forgotten
-- transaction holds xmin, each of hundreds of thousands. Nothing adds rows here, and `doctor` counts them. This waits for
-- settles that are under way, and new ones wait for that; no relay keeps the table locked for longer. Writers of events do
-- not use it.
ALTER TABLE outbox_lane DROP CONSTRAINT IF EXISTS outbox_lane_pkey;
CREATE INDEX IF NOT EXISTS outbox_lane_number ON outbox_lane (lane);

-- With no key of its own the table could not be written any more where it is published, as in FOR ALL TABLES.
ALTER TABLE outbox_lane REPLICA IDENTITY FULL;

INSERT INTO quiesce_schema (version, name) VALUES (6, 'cursors') ON CONFLICT DO NOTHING;
