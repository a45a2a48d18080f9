"""PostgreSQL through asyncpg: the application's pool, `enqueue` and `enqueue_many`, the schema and the two stores."""

from quiesce.postgres import schema
from quiesce.postgres.connections import connect
from quiesce.postgres.dsn import redact_dsn
from quiesce.postgres.enqueue import enqueue, enqueue_many
from quiesce.postgres.outbox_log import OutboxLog
from quiesce.postgres.outbox_rows import OutboxRows
from quiesce.postgres.outbox_watch import OutboxWatch
from quiesce.postgres.pool import open_pool
from quiesce.postgres.retention import prune
from quiesce.postgres.row_table import Constant, OutboxTable
from quiesce.postgres.wakeup import OutboxWaker, OutboxWakeups

__all__ = [
    "Constant",
    "OutboxLog",
    "OutboxRows",
    "OutboxTable",
    "OutboxWaker",
    "OutboxWakeups",
    "OutboxWatch",
    "connect",
    "enqueue",
    "enqueue_many",
    "open_pool",
    "prune",
    "redact_dsn",
    "schema",
]
