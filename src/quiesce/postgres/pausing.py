"""Pausing all relays of an outbox, and letting them go on. Writers are never held."""

from dataclasses import dataclass
from datetime import datetime

from quiesce.postgres import audit, schema
from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.operating import short_transaction


@dataclass(frozen=True, slots=True)
class Paused:
    """Since when, by whom, and why."""

    at: datetime
    by: str
    why: str


_READ = "SELECT paused_at, paused_by, paused_why FROM outbox_control"
_PAUSE = """
UPDATE outbox_control SET paused_at = statement_timestamp(), paused_by = $1, paused_why = $2 WHERE paused_at IS NULL
"""
_RESUME = "UPDATE outbox_control SET paused_at = NULL, paused_by = NULL, paused_why = NULL"


async def paused(connection: AnyConnection) -> Paused | None:
    """The pause that holds now."""
    row = await connection.fetchrow(_READ)
    return None if row is None or row[0] is None else Paused(row[0], row[1], row[2] or "")


async def pause(connection: AnyConnection, *, said_by: str, why: str = "", dry_run: bool = False) -> bool:
    """Has relays claim nothing more, within a second or so. What they have in hand is finished.

    Whether anything changed: a pause that holds already is left as it is, with its author.

    Raises:
        SchemaMissing: somebody deleted the row that a pause is written into.
    """
    if dry_run:
        return await paused(connection) is None
    async with short_transaction(connection):
        changed = await connection.execute(_PAUSE, said_by, why or None) == "UPDATE 1"
        if changed:
            await audit.record(connection, "pause", said_by, {"why": why or None})
        elif await paused(connection) is None:
            raise schema.missing("outbox_control has no row")
    return changed


async def resume(connection: AnyConnection, *, said_by: str, dry_run: bool = False) -> Paused | None:
    """Ends the pause; returns the one that held."""
    if dry_run:
        return await paused(connection)
    async with short_transaction(connection):
        await connection.execute("SELECT 1 FROM outbox_control FOR UPDATE")
        before = await paused(connection)
        if before is not None:
            await connection.execute(_RESUME)
            await audit.record(connection, "resume", said_by, {"paused_at": before.at, "paused_by": before.by})
    return before
