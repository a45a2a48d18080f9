"""PostgreSQL through SQLAlchemy: its engines as resources, `enqueue`, and the outbox's tables made by Alembic."""

from quiesce.sqlalchemy.engines import open_async_engine, open_engine
from quiesce.sqlalchemy.enqueue import enqueue, enqueue_many
from quiesce.sqlalchemy.migrating import OUTBOX_TABLES, apply_outbox_schema, drop_outbox_schema

__all__ = [
    "OUTBOX_TABLES",
    "apply_outbox_schema",
    "drop_outbox_schema",
    "enqueue",
    "enqueue_many",
    "open_async_engine",
    "open_engine",
]
