"""PostgreSQL through asyncpg: the application's pool, `enqueue` and `enqueue_many`, the schema and the row store."""

from quiesce.postgres import schema
from quiesce.postgres.connections import connect
from quiesce.postgres.dsn import redact_dsn
from quiesce.postgres.enqueue import enqueue, enqueue_many
from quiesce.postgres.outbox_rows import OutboxRows
from quiesce.postgres.pool import open_pool

__all__ = ["OutboxRows", "connect", "enqueue", "enqueue_many", "open_pool", "redact_dsn", "schema"]
