"""PostgreSQL through psycopg 3: its pools as resources, and `enqueue` on its connections."""

from quiesce.psycopg.enqueue import enqueue, enqueue_many
from quiesce.psycopg.pools import open_pool, open_sync_pool

__all__ = ["enqueue", "enqueue_many", "open_pool", "open_sync_pool"]
