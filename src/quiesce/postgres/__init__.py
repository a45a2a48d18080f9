"""PostgreSQL through asyncpg: the application's pool, `enqueue`, the schema and the row store."""

from quiesce.postgres import schema
from quiesce.postgres.connections import connect
from quiesce.postgres.dsn import redact_dsn
from quiesce.postgres.enqueue import enqueue
from quiesce.postgres.outbox_rows import OutboxRows
from quiesce.postgres.pool import open_pool

__all__ = ["OutboxRows", "connect", "enqueue", "open_pool", "redact_dsn", "schema"]
