"""PostgreSQL through psycopg 3: its pools as resources, `enqueue` and the inbox on its connections."""

from quiesce.psycopg.enqueue import enqueue, enqueue_many
from quiesce.psycopg.idempotency_keys import IdempotencyKeys
from quiesce.psycopg.inbox import inbox_entries, inbox_entry
from quiesce.psycopg.once import once, once_batch
from quiesce.psycopg.pools import open_pool, open_sync_pool

__all__ = [
    "IdempotencyKeys",
    "enqueue",
    "enqueue_many",
    "inbox_entries",
    "inbox_entry",
    "once",
    "once_batch",
    "open_pool",
    "open_sync_pool",
]
