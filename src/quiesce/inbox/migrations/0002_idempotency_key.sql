-- Idempotency keys: which requests were carried out, and what they were answered. Needs 0001.
-- Run it in one transaction; a second run does nothing.

CREATE TABLE IF NOT EXISTS idempotency_key (
    -- Whose key it is: a user, a tenant. Empty where the application said that all share one set of keys.
    scope       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL CHECK (key <> ''),
    -- SHA-256 over method, path, query and body. Compared, never looked up by.
    fingerprint bytea            NOT NULL,
    -- claimed: somebody carries it out. answered: its response stands here. done: it was carried out, and its
    -- response could not be kept; `not_kept` says why.
    state       text             NOT NULL DEFAULT 'claimed' CHECK (state IN ('claimed', 'answered', 'done')),
    -- Of the claim. Who was replaced meanwhile finds no row of its own.
    owner       uuid             NOT NULL,
    attempt     integer          NOT NULL DEFAULT 1,
    -- While it is claimed and committed: when others may take it. NULL where the claim is an open transaction.
    leased_till timestamptz,
    status      smallint,
    headers     jsonb,
    body        bytea,
    not_kept    text,
    created_at  timestamptz      NOT NULL DEFAULT now(),
    -- From then on the key is as new.
    expires_at  timestamptz      NOT NULL,
    PRIMARY KEY (scope, key),
    CHECK ((state = 'claimed') = (status IS NULL)),
    CHECK ((state = 'done') = (not_kept IS NOT NULL))
)
-- Each row is written once and updated once: with room on its page the update stays out of the indexes.
WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, vacuum_truncate = false);

-- For pruning.
CREATE INDEX IF NOT EXISTS idempotency_key_expires ON idempotency_key (expires_at);

INSERT INTO quiesce_inbox_schema (version, name) VALUES (2, 'idempotency_key') ON CONFLICT DO NOTHING;
