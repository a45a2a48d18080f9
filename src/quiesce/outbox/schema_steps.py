"""The outbox's tables as versioned steps of SQL. Read here, run by whoever has a connection."""

from quiesce.migrations import LOCK, Migration, Tables

__all__ = ["DROP", "LOCK", "OUTBOX", "TABLES", "Migration", "latest_version", "migrations", "show"]

TABLES = ("quiesce_schema", "outbox_event", "outbox_parked", "outbox_lane", "outbox_control", "outbox_audit")
"""The tables that the steps make."""

DROP = (
    "DROP TABLE IF EXISTS outbox_audit, outbox_control, outbox_lane, outbox_parked, outbox_event, quiesce_schema",
    "DROP FUNCTION IF EXISTS outbox_lane(text)",
    "DROP FUNCTION IF EXISTS outbox_watch(smallint[], pg_snapshot[], float8, float8, float8, integer, bigint)",
)
"""Takes all of it away, events and letters included."""

OUTBOX = Tables(
    part="outbox",
    package="quiesce.outbox",
    names=TABLES,
    main="outbox_event",
    versions="quiesce_schema",
    drop=DROP,
    functions=("outbox_lane", "outbox_watch"),
)


def migrations() -> list[Migration]:
    """All migrations of this package, oldest first."""
    return OUTBOX.migrations()


def latest_version() -> int:
    """The version that this package brings."""
    return OUTBOX.latest_version()


def show() -> str:
    """The SQL of all migrations, to be read, or run by hand: `psql --single-transaction`."""
    return OUTBOX.show()
