"""Giving cursors a meaning again after a restore or a failover.

A cursor names transactions, so it means something in one history only. The rows came with it: whether an event had been
read follows from its own transaction number and the recorded cursor, wherever they stand now. So nothing is guessed:

- **resend-all-unknown**: what had not been read by the recorded cursors will be sent. What the old database had sent
  without having recorded it here is sent again.
- **skip-to-now**: all that is in the table counts as dispatched, also what was set aside to be retried. Dead letters
  stay.

Either way every lane's cursor becomes "all that is visible now, up to `last`". An event below `last` that must still
be sent becomes a retry that is due now. A restored event has the number of a foreign transaction, which this server may
not have had yet: it would count as late, and be sent, at every read. It gets a number from before all others instead,
which is visible in every snapshot. `epoch` is raised, so that an owner from before cannot move a cursor.
"""

from dataclasses import dataclass
from typing import Literal

from quiesce.errors import SettingsError
from quiesce.postgres import audit, waiting
from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.lane_statements import LANES
from quiesce.postgres.operating import short_transaction
from quiesce.postgres.server_identity import Replaced, replaced

Choice = Literal["resend-all-unknown", "skip-to-now"]

SECONDS = 600.0
"""A statement's limit: rewriting the numbers of millions of rows takes a while, and the relays stand still anyway."""


@dataclass(frozen=True, slots=True)
class Rebased:
    """What a rebase did, or would do. Numbers of events."""

    replaced: Replaced
    unread: int
    """Not read by the recorded cursors. Sent, or skipped."""
    parked: int
    """Set aside to be retried, or held behind others of their key. Sent, or skipped."""
    behind_dead: int
    """Those of them that are held behind dead letters alone: not sent before these are redriven or discarded."""
    foreign: int
    """Rows with the number of a transaction that is not of this server's past."""


# Before the snapshot that all the rest is done under.
_LOCK = "LOCK TABLE outbox_lane IN EXCLUSIVE MODE"
_ROWS = "SELECT count(*) FROM outbox_lane"
_UNREAD = """
FROM outbox_event AS e JOIN outbox_lane AS l ON l.lane = e.lane
WHERE NOT (e.position <= l.last AND pg_visible_in_snapshot(e.xid, l.seen))
    AND (l.until IS NULL OR NOT (e.position <= l.at AND pg_visible_in_snapshot(e.xid, l.until)))
    AND NOT EXISTS (SELECT FROM outbox_parked AS p WHERE p.event_id = e.id)
"""
_BEFORE = """
EXISTS (
            SELECT FROM outbox_parked AS o
            WHERE (o.lane, o.key, o.state) = (p.lane, p.key, '{}') AND o.position < p.position
        )
""".strip()
_COUNT = f"""
SELECT (SELECT count(*) {_UNREAD}) AS unread,
    (SELECT count(*) FROM outbox_parked WHERE state <> 'dead') AS parked,
    (
        SELECT count(*) FROM outbox_parked AS p
        WHERE state = 'held' AND {_BEFORE.format("dead")} AND NOT {_BEFORE.format("retry")}
    ) AS behind_dead,
    (SELECT count(*) FROM outbox_event WHERE NOT pg_visible_in_snapshot(xid, (SELECT pg_current_snapshot()))) AS foreign
"""  # noqa: S608 - a piece of our own
_KEEP_LATE = f"""
INSERT INTO outbox_parked (event_id, position, lane, key, state, reason, next_at)
SELECT e.id, e.position, e.lane, e.aggregate_id, 'retry', 'not read before the rebase', statement_timestamp()
{_UNREAD} AND e.position <= l.last
"""
# What this statement sees has ended, so a number that is not visible in its own snapshot is none of this server's.
_ADOPT = "UPDATE outbox_event SET xid = '2' WHERE NOT pg_visible_in_snapshot(xid, (SELECT pg_current_snapshot()))"
_SKIP = """
UPDATE outbox_lane AS l SET last = greatest(l.last, (
    SELECT coalesce(max(position), 0) FROM outbox_event AS e WHERE e.lane = l.lane
))
"""
_FORGET = "DELETE FROM outbox_parked WHERE state <> 'dead'"
_SEE = """
UPDATE outbox_lane SET seen = pg_current_snapshot(), until = NULL, at = NULL, epoch = epoch + 1,
    version = version + 1, owner = NULL, owned_at = NULL
"""
_RECORD = "UPDATE outbox_control SET system_identifier = $1, timeline = $2, database_oid = $3, table_oid = $4"


async def look(connection: AnyConnection) -> Rebased:
    """What a rebase would do; changes nothing.

    Raises:
        SettingsError: the table belongs to the row store, which has no cursors.
    """
    async with short_transaction(connection, readonly=True, seconds=SECONDS):
        await _require_log(connection)
        return await _counted(connection)


async def rebase(connection: AnyConnection, choice: Choice, *, said_by: str, anyway: bool = False) -> Rebased:
    """Sets cursors, and what they belong to, anew, in one transaction, with its row in the audit.

    Writers may go on meanwhile: what commits later is new to the cursors. `anyway` skips also where nothing says that
    the database was replaced.

    Raises:
        SettingsError: the table belongs to the row store, or this server is a standby, or events would be skipped in
            a database that was not replaced.
    """
    # One snapshot for all statements: what commits between two of them must not be passed over by the one and taken
    # for seen by the other. It becomes the cursor.
    async with short_transaction(connection, seconds=SECONDS, isolation="repeatable_read"):
        await connection.execute(_LOCK)
        await _require_log(connection)
        found = await _counted(connection)
        if choice == "skip-to-now" and not (anyway or found.replaced.why):
            raise SettingsError(
                f"rebase: got --skip-to-now, but nothing says that the database was replaced, and {found.unread:,} "
                "events would never be sent. Takes --anyway beside it"
            )
        if choice == "resend-all-unknown":
            await connection.execute(_KEEP_LATE)
        await connection.execute(_ADOPT)
        if choice == "skip-to-now":
            await connection.execute(_FORGET)
            await connection.execute(_SKIP)
        await connection.execute(_SEE)
        now = found.replaced.now
        await connection.execute(_RECORD, now.system_identifier, now.timeline, now.database_oid, now.table_oid)
        detail = {
            "choice": choice,
            "why": found.replaced.why,
            "unread": found.unread,
            "parked": found.parked,
            "behind_dead": found.behind_dead,
            "foreign": found.foreign,
        }
        await audit.record(connection, "rebase", said_by, detail, found.unread + found.parked)
    return found


async def _require_log(connection: AnyConnection) -> None:
    rows = await connection.fetchval(_ROWS)
    if rows != LANES:
        raise SettingsError(f"rebase: outbox_lane has {rows} rows, takes {LANES}. See: quiesce outbox doctor")
    kind = await waiting.recorded_store(connection)
    if kind == "row":
        raise SettingsError("rebase: this outbox belongs to the row store, which has no cursors. Nothing need be done")
    if kind is None:
        raise SettingsError("rebase: no relay has opened this outbox yet, so it has no cursors. Nothing need be done")


async def _counted(connection: AnyConnection) -> Rebased:
    difference = await replaced(connection)
    if difference.now.timeline is None:
        raise SettingsError("rebase: this server is a standby. Takes the primary")
    row = await connection.fetchrow(_COUNT)
    assert row is not None, "aggregates always have a row"
    return Rebased(difference, row["unread"], row["parked"], row["behind_dead"], row["foreign"])
