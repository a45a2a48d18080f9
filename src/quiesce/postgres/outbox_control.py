"""Which kind of store runs a table, and in which database: the first store that opens it says so."""

import asyncpg

from quiesce.errors import SchemaMissing, SettingsError
from quiesce.outbox.refusals import APPLY_COMMAND
from quiesce.outbox.schema_steps import FOR_STORE, StoreKind
from quiesce.postgres import schema
from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.encoding import MOVE, wrong_encoding
from quiesce.postgres.lane_rows import EVERY
from quiesce.postgres.server_identity import server_identity

_READ = "SELECT store, system_identifier FROM outbox_control"
_TAKE = "UPDATE outbox_control SET store = $1 WHERE store IS NULL"
_RECORD = """
UPDATE outbox_control SET system_identifier = $1, timeline = $2, database_oid = $3, table_oid = $4
WHERE system_identifier IS NULL
"""
# Two rows of a lane come from a restore, and then the table is small. To count the rows of one with millions of former
# versions takes too long.
_LANES = f"""
SELECT CASE WHEN pg_relation_size('outbox_lane') < 1048576 THEN (SELECT count(*) FROM outbox_lane) ELSE count(*) END,
    count(*) FILTER (WHERE moved_at IS NOT NULL OR last > 0)
FROM {EVERY} AS lane
"""  # noqa: S608 - a piece of our own
# Row stores mark in the order of position, so the ends of each lane tell; a walk over all would take too long.
_MARKED = """
SELECT EXISTS (
    SELECT FROM generate_series(0, 15) AS l (lane) CROSS JOIN LATERAL (
        (SELECT * FROM outbox_event AS e WHERE e.lane = l.lane ORDER BY position LIMIT 1000)
        UNION ALL
        (SELECT * FROM outbox_event AS e WHERE e.lane = l.lane ORDER BY position DESC LIMIT 1000)
    ) AS ends
    WHERE ends.dispatched_at IS NOT NULL OR ends.dead_at IS NOT NULL
)
"""

_CLASS = {"row": "OutboxRows", "log": "OutboxLog"}


async def take_table(connection: AnyConnection, kind: StoreKind, name: str) -> None:
    """Writes down, once, that this kind of store runs the table. Both at once would send every event twice.

    The log store's cursors mean something in one database only, so it writes down which one, too.

    Raises:
        SettingsError: the other kind runs it or has left its marks in it, or the user may not write that down; or the
            database's encoding is SQL_ASCII.
        SchemaMissing: tables, or rows that a migration brought, are gone.
    """
    if (wrong := await wrong_encoding(connection)) is not None:
        raise SettingsError(f"{name}: {wrong}. {MOVE}")
    try:
        system_identifier = await _take(connection, kind, name)
        if kind == "log" and system_identifier is None:
            now = await server_identity(connection)
            await connection.execute(_RECORD, now.system_identifier, now.timeline, now.database_oid, now.table_oid)
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        # One of the tables was dropped by hand: the version alone does not tell.
        raise schema.missing(str(error)) from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise SettingsError(f"{name}: the relay's user may not read and update outbox_control: {error}") from error


async def keep_to_store(connection: AnyConnection, kind: StoreKind, name: str) -> None:
    """Writes down that this kind of store runs the table, before any has opened it, and leaves it the indexes that such
    a store has a use for. Needs the tables' owner, and a transaction.

    Raises:
        SettingsError: the other kind runs it or has left its marks in it.
        SchemaMissing: rows that a migration brought are gone.
    """
    await _take(connection, kind, name)
    for statement in FOR_STORE[kind]:
        await connection.execute(statement)


async def _take(connection: AnyConnection, kind: StoreKind, name: str) -> int | None:
    """Takes the table. Returns the cluster that its cursors belong to, None where none is written down."""
    store, system_identifier = await _read(connection)
    if kind == "log" and store in (None, kind):
        await _check_lanes(connection, name)
    if store is None:
        await connection.execute(_TAKE, kind)
        store, _ = await _read(connection)
    if store != kind:
        takes = _CLASS.get(store or "", "another")
        raise SettingsError(
            f"{name}: got {_CLASS[kind]}, takes {takes}: that kind of store runs this table, and both at once "
            "would send every event twice. To change it, stop all relays, empty the table, set "
            f"outbox_control.store to NULL and run: {APPLY_COMMAND} --for-store {kind}"
        )
    return system_identifier


async def _check_lanes(connection: AnyConnection, name: str) -> None:
    lanes, moved = await connection.fetchrow(_LANES) or (0, 0)
    if lanes != 16:
        raise SchemaMissing(
            f"{name}: outbox_lane has {lanes} rows, takes 16, one a lane: cursors were lost, or restored over others. "
            "See: quiesce outbox doctor"
        )
    # Cursors that stand at the beginning take no notice of marks.
    if not moved and await connection.fetchval(_MARKED):
        raise SettingsError(
            f"{name}: got OutboxLog, takes OutboxRows: events of this table were marked by row stores, and the log "
            "store would send them again. To change it, empty the table"
        )


async def _read(connection: AnyConnection) -> tuple[str | None, int | None]:
    row = await connection.fetchrow(_READ)
    if row is None:
        raise schema.missing("outbox_control has no row")
    return row["store"], row["system_identifier"]
