"""PostgreSQL through asyncpg: the application's pool, `enqueue`, the inbox, the schema and the stores."""

from quiesce.postgres import schema
from quiesce.postgres.connections import connect
from quiesce.postgres.dsn import redact_dsn
from quiesce.postgres.enqueue import enqueue, enqueue_many
from quiesce.postgres.idempotency_keys import IdempotencyKeys, prune_keys
from quiesce.postgres.inbox import inbox_entries, inbox_entry
from quiesce.postgres.inbox_retention import prune_inbox
from quiesce.postgres.once import once, once_batch
from quiesce.postgres.outbox_log import OutboxLog
from quiesce.postgres.outbox_rows import OutboxRows
from quiesce.postgres.outbox_watch import OutboxWatch
from quiesce.postgres.pool import open_pool
from quiesce.postgres.record_starts import RecordStarts
from quiesce.postgres.retention import prune
from quiesce.postgres.row_table import Constant, OutboxTable
from quiesce.postgres.wakeup import OutboxWaker, OutboxWakeups

__all__ = [
    "Constant",
    "IdempotencyKeys",
    "OutboxLog",
    "OutboxRows",
    "OutboxTable",
    "OutboxWaker",
    "OutboxWakeups",
    "OutboxWatch",
    "RecordStarts",
    "connect",
    "enqueue",
    "enqueue_many",
    "inbox_entries",
    "inbox_entry",
    "once",
    "once_batch",
    "open_pool",
    "prune",
    "prune_inbox",
    "prune_keys",
    "redact_dsn",
    "schema",
]
