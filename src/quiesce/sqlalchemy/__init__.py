"""PostgreSQL through SQLAlchemy: its engines as resources, `enqueue`, the inbox, and our tables made by Alembic."""

from quiesce.sqlalchemy.engines import open_async_engine, open_engine
from quiesce.sqlalchemy.enqueue import enqueue, enqueue_many
from quiesce.sqlalchemy.idempotency_keys import IdempotencyKeys
from quiesce.sqlalchemy.inbox import inbox_entries, inbox_entry
from quiesce.sqlalchemy.migrating import (
    INBOX_TABLES,
    OUTBOX_TABLES,
    apply_inbox_schema,
    apply_outbox_schema,
    drop_inbox_schema,
    drop_outbox_schema,
)
from quiesce.sqlalchemy.once import once, once_batch

__all__ = [
    "INBOX_TABLES",
    "OUTBOX_TABLES",
    "IdempotencyKeys",
    "apply_inbox_schema",
    "apply_outbox_schema",
    "drop_inbox_schema",
    "drop_outbox_schema",
    "enqueue",
    "enqueue_many",
    "inbox_entries",
    "inbox_entry",
    "once",
    "once_batch",
    "open_async_engine",
    "open_engine",
]
