"""PostgreSQL through SQLAlchemy: its engines as resources, and `enqueue` on its sessions and connections."""

from quiesce.sqlalchemy.engines import open_async_engine, open_engine
from quiesce.sqlalchemy.enqueue import enqueue, enqueue_many

__all__ = ["enqueue", "enqueue_many", "open_async_engine", "open_engine"]
