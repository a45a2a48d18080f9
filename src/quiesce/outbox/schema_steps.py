"""The outbox's tables as versioned steps of SQL. Read here, run by whoever has a connection."""

from collections.abc import Mapping
from typing import Literal

from quiesce.migrations import LOCK, Migration, Tables

__all__ = [
    "DROP",
    "FOR_STORE",
    "LOCK",
    "NOT_FOR",
    "OUTBOX",
    "TABLES",
    "Migration",
    "StoreKind",
    "latest_version",
    "migrations",
    "show",
]

StoreKind = Literal["row", "log"]

TABLES = ("quiesce_schema", "outbox_event", "outbox_parked", "outbox_lane", "outbox_control", "outbox_audit")
"""The tables that the steps make."""

DROP = (
    "DROP TABLE IF EXISTS outbox_audit, outbox_control, outbox_lane, outbox_parked, outbox_event, quiesce_schema",
    "DROP FUNCTION IF EXISTS outbox_lane(text)",
    "DROP FUNCTION IF EXISTS outbox_lane_once()",
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
    functions=("outbox_lane", "outbox_watch", "outbox_lane_once"),
)

NOT_FOR: Mapping[StoreKind, str] = {"row": "outbox_event_xid", "log": "outbox_event_waiting"}
"""The index that this kind of store has no use for."""

# A row that is marked has a second entry in each index, beside its first one: with room for it no page is split for it.
FOR_STORE: Mapping[StoreKind, tuple[str, ...]] = {
    "row": (
        "UPDATE outbox_control SET store = 'row' WHERE store IS NULL",
        "CREATE INDEX IF NOT EXISTS outbox_event_waiting ON outbox_event (position) "
        "WHERE dispatched_at IS NULL AND dead_at IS NULL",
        "DROP INDEX IF EXISTS outbox_event_xid",
        "ALTER INDEX outbox_event_pkey SET (fillfactor = 50)",
        "ALTER INDEX outbox_event_id SET (fillfactor = 50)",
        "ALTER TABLE outbox_event SET (autovacuum_vacuum_insert_scale_factor = 0.05, "
        "autovacuum_analyze_scale_factor = 0.02)",
    ),
    "log": (
        "UPDATE outbox_control SET store = 'log' WHERE store IS NULL",
        "CREATE INDEX IF NOT EXISTS outbox_event_xid ON outbox_event (lane, xid, position)",
        "DROP INDEX IF EXISTS outbox_event_waiting",
        "ALTER INDEX outbox_event_pkey RESET (fillfactor)",
        "ALTER INDEX outbox_event_id RESET (fillfactor)",
        # Nothing is updated, and no plan goes by statistics. To look through all of it at every twentieth more is work
        # for nothing while a forgotten transaction holds xmin: then no page counts as looked through.
        "ALTER TABLE outbox_event SET (autovacuum_vacuum_insert_scale_factor = 0.2, "
        "autovacuum_analyze_scale_factor = 0.2)",
    ),
}
"""What gives the tables to one kind of store, and leaves them the indexes that it has a use for. The steps make those
of both. May be run twice, and by hand where no other kind of store has ever run them."""


def migrations() -> list[Migration]:
    """All migrations of this package, oldest first."""
    return OUTBOX.migrations()


def latest_version() -> int:
    """The version that this package brings."""
    return OUTBOX.latest_version()


def show(store: StoreKind | None = None) -> str:
    """The SQL of all migrations, to be read, or run by hand: `psql --single-transaction`. `store`: and what gives the
    tables to this kind of store."""
    if store is None:
        return OUTBOX.show()
    return "\n".join((OUTBOX.show(), f"-- for {store} stores\n", *(f"{statement};" for statement in FOR_STORE[store])))
