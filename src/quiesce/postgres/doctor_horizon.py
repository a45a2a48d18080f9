"""Checks of what keeps PostgreSQL from cleaning up: old snapshots, idle transactions, slots, prepared transactions."""

from collections.abc import Sequence
from typing import Any

from quiesce.outbox.checks import Check, Verdict
from quiesce.postgres.driver import Connection

HELD_WARN = 60.0
HELD_BAD = 3600.0
"""Seconds."""

# A relay's session that holds lanes sits idle in a transaction by design, and holds nothing else.
_SESSIONS = """
SELECT pid, usename, application_name, state, backend_xmin IS NOT NULL OR backend_xid IS NOT NULL AS holds,
    extract(epoch FROM clock_timestamp() - coalesce(xact_start, backend_start))::float8 AS since,
    extract(epoch FROM clock_timestamp() - state_change)::float8 AS idle
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type IN ('client backend', 'walsender')
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
ORDER BY since DESC
"""
_HIDDEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type IS NULL AND NOT pg_has_role(usesysid, 'USAGE')
"""
_SLOTS = """
SELECT slot_name, slot_type, active, wal_status, age(xmin) AS xmin_age,
    pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)) AS behind
FROM pg_replication_slots ORDER BY slot_name
"""
_PREPARED = """
SELECT gid, owner, extract(epoch FROM clock_timestamp() - prepared)::float8 AS since
FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared
"""


async def horizon(db: Connection) -> list[Check]:
    """Who keeps deleted row versions from being cleaned away, and for how long."""
    rows = await db.fetch(_SESSIONS)
    held = [row for row in rows if row["since"] >= HELD_WARN]
    found = [_held(held), _idle([row for row in rows if _is_idle(row) and row["idle"] >= HELD_WARN])]
    hidden = await db.fetchval(_HIDDEN)
    if hidden:
        found.append(
            Check(
                "other sessions",
                "warn",
                f"{hidden} sessions of other roles are hidden from this user, so what they hold is not known",
                "GRANT pg_read_all_stats to the role that asks",
            )
        )
    return found


async def prepared(db: Connection) -> list[Check]:
    """Prepared transactions are held by nobody, and survive a restart."""
    rows = [row for row in await db.fetch(_PREPARED) if row["since"] >= HELD_WARN]
    if not rows:
        return [Check("prepared transactions", "ok", "none that is old")]
    told = _listed(f"{row['gid']!r} of {row['owner']} for {_span(row['since'])}" for row in rows)
    oldest = rows[0]
    return [
        Check(
            "prepared transactions",
            _by_age(oldest["since"]),
            f"not yet ended: {told}",
            f"End them: ROLLBACK PREPARED '{oldest['gid']}', or COMMIT PREPARED",
        )
    ]


async def slots(db: Connection) -> list[Check]:
    """Slots that nobody reads keep row versions, or WAL until the disk is full."""
    if await db.fetchval("SELECT pg_is_in_recovery()"):
        return []
    rows = await db.fetch(_SLOTS)
    stale = [row for row in rows if not row["active"]]
    if not stale:
        return [Check("replication slots", "ok", f"{len(rows)}, each of them read" if rows else "none")]
    keeps = [row for row in stale if row["xmin_age"] is not None]
    lost = [row for row in stale if row["wal_status"] in ("unreserved", "lost")]
    told = _listed(f"{row['slot_name']} ({row['slot_type']}), {row['behind'] or 'nothing'} behind" for row in stale)
    return [
        Check(
            "replication slots",
            "bad" if keeps or lost else "warn",
            f"nobody reads: {told}" + ("; row versions are kept for it" if keeps else ""),
            f"Connect its reader, or drop it: SELECT pg_drop_replication_slot('{(keeps or lost or stale)[0][0]}')",
        )
    ]


def _held(rows: Sequence[Any]) -> Check:
    if not rows:
        return Check("held xmin", "ok", f"no session has held a snapshot for {HELD_WARN:g} s")
    told = _listed(
        f"session {row['pid']} ({row['usename']}, {row['application_name'] or 'no name'}, {row['state']}) for "
        f"{_span(row['since'])}"
        for row in rows
    )
    return Check(
        "held xmin",
        _by_age(rows[0]["since"]),
        f"dead row versions are kept in the whole database by {told}",
        f"End it if it is forgotten: SELECT pg_terminate_backend({rows[0]['pid']})",
    )


def _idle(rows: Sequence[Any]) -> Check:
    if not rows:
        return Check("idle in transaction", "ok", "no session that holds anything")
    told = _listed(
        f"session {row['pid']} ({row['usename']}, {row['application_name'] or 'no name'}) for {_span(row['idle'])}"
        for row in rows
    )
    return Check(
        "idle in transaction",
        "warn",
        told,
        "Find out why it does not end its transaction; idle_in_transaction_session_timeout bounds such sessions",
    )


def _is_idle(row: Any) -> bool:
    return (row["state"] or "").startswith("idle in transaction") and row["idle"] is not None


def _by_age(seconds: float) -> Verdict:
    return "bad" if seconds >= HELD_BAD else "warn"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _listed(told: Any, most: int = 5) -> str:
    every = list(told)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
