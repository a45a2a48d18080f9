"""Checks of the server: what durability rests on, its clock, and whether something stands in between."""

import time
from datetime import UTC, datetime

from quiesce.outbox.checks import Check, Verdict
from quiesce.postgres.driver import Connection
from quiesce.postgres.encoding import MOVE, wrong_encoding

SKEW_WARN = 1.0
SKEW_BAD = 30.0
"""Seconds. Retries and retention go by the database's clock alone; people compare it with that of the services."""

_SETTINGS = """
SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS standby,
    current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS standby_names
"""
# What everybody may read: of this database, of roles, of roles in this database.
_SET_FOR = """
SELECT coalesce('role ' || quote_ident(r.rolname), 'this database') AS whom
FROM pg_db_role_setting AS s LEFT JOIN pg_roles AS r ON r.oid = s.setrole
WHERE s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
    AND (s.setrole = 0 OR r.rolcanlogin)
    AND EXISTS (SELECT FROM unnest(s.setconfig) AS given WHERE lower(given) = ANY ($1))
ORDER BY 1
"""
_REPLICAS = """
SELECT count(*) AS replicas, count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) AS synchronous
FROM pg_stat_replication
"""


async def server(db: Connection) -> list[Check]:
    """Whether it can be written to, and whether what is committed stays."""
    row = await db.fetchrow(_SETTINGS)
    assert row is not None, "a select without a table has its one row"
    found: list[Check] = [
        Check("server", "bad", "a standby: nothing can be claimed or settled here", "Point the DSN at the primary")
        if row["standby"]
        else Check("server", "ok", f"PostgreSQL {row['version'].split()[0]}, a primary")
    ]
    if row["fsync"] == "off":
        durability = Check(
            "durability",
            "bad",
            "fsync is off: a crash of the machine loses what was committed, or the whole database",
            "Set fsync = on",
        )
    elif lazy := await _lazy(db, row["synchronous_commit"]):
        durability = Check(
            "durability",
            "warn",
            f"synchronous_commit is off for {lazy}: a crash loses the last commits, an event with its data, which may "
            "have been published by then, and what was settled is sent again",
            "Set synchronous_commit = on for writers and relays",
        )
    elif row["full_page_writes"] == "off":
        durability = Check(
            "durability",
            "warn",
            "full_page_writes is off: a crash may tear pages",
            "Set full_page_writes = on, unless the file system never tears a page",
        )
    else:
        durability = Check("durability", "ok", f"fsync is on, synchronous_commit {row['synchronous_commit']}")
    return [*found, durability]


async def _lazy(db: Connection, ours: str) -> str:
    """Whose commits wait for no disk. What a session or a transaction sets for itself nobody sees."""
    whom = ["this user"] if ours == "off" else []
    return ", ".join(whom + await _set_for(db, "synchronous_commit", "off", "false", "no", "0"))


async def text(db: Connection) -> list[Check]:
    """Whether what is stored as text can be read as text."""
    wrong = await wrong_encoding(db)
    if wrong is not None:
        return [Check("encoding", "bad", wrong, MOVE)]
    return [Check("encoding", "ok", await db.fetchval("SELECT current_setting('server_encoding')"))]


async def defaults(db: Connection) -> list[Check]:
    """Who may write nothing unless it says so. A relay says so itself, where no pooler keeps it from the server."""
    whom = await _set_for(db, "default_transaction_read_only", "on", "true", "yes", "1")
    if not whom and await db.fetchval("SELECT current_setting('default_transaction_read_only')") == "on":
        whom = ["everybody"]
    if not whom:
        return [Check("defaults", "ok", "transactions may write")]
    return [
        Check(
            "defaults",
            "warn",
            f"default_transaction_read_only is on for {', '.join(whom)}: such a writer's events are refused, and "
            "behind a pooler such a relay records nothing",
            "ALTER DATABASE or ALTER ROLE ... RESET default_transaction_read_only for writers and relays",
        )
    ]


async def _set_for(db: Connection, name: str, *values: str) -> list[str]:
    """Whose sessions begin with the setting at one of these values, other than by the server's own configuration."""
    return [row["whom"] for row in await db.fetch(_SET_FOR, [f"{name}={value}" for value in values])]


async def replication(db: Connection) -> list[Check]:
    """What a failover would lose."""
    row = await db.fetchrow(_REPLICAS)
    assert row is not None, "an aggregate always has a row"
    if row["replicas"] == 0:
        return [Check("replication", "ok", "no standby is connected, so none can take over behind")]
    if row["synchronous"] == 0:
        return [
            Check(
                "replication",
                "warn",
                f"{row['replicas']} standbys, none of them synchronous: a failover loses the last commits, events "
                "with their data. What had been sent of them stays sent",
                "Name one in synchronous_standby_names, or live with it",
            )
        ]
    return [Check("replication", "ok", f"{row['synchronous']} of {row['replicas']} standbys are synchronous")]


async def clock(db: Connection) -> list[Check]:
    """How far this machine's clock and the database's are apart, to within half an exchange."""
    best = None
    for _ in range(3):
        before = time.monotonic()
        theirs: datetime = await db.fetchval("SELECT clock_timestamp()")
        took = time.monotonic() - before
        skew = (datetime.now(UTC) - theirs).total_seconds() - took / 2
        if best is None or took < best[0]:
            best = (took, skew)
    assert best is not None, "it was asked"
    return [_skewed(best[1], best[0] / 2)]


def _skewed(skew: float, doubt: float) -> Check:
    apart = max(0.0, abs(skew) - doubt)
    verdict: Verdict = "bad" if apart >= SKEW_BAD else "warn" if apart >= SKEW_WARN else "ok"
    told = f"this machine is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} the database"
    return Check("clock", verdict, told, "" if verdict == "ok" else "Keep both in step, by NTP or the like")


async def pooler(db: Connection) -> list[Check]:
    """A pooler shows by the number of the session: the one it tells its clients is its own."""
    seen = set()
    for _ in range(4):
        # Each in a transaction of its own, since that is what poolers give to one session.
        async with db.transaction():
            seen.add(await db.fetchval("SELECT pg_backend_pid()"))
            limits = await db.fetchval("SELECT current_setting('tcp_user_timeout')")
    if seen == {db.get_server_pid()}:
        return [Check("pooler", "ok", "none in between")]
    told = "a pooler such as PgBouncer stands in between"
    if len(seen) > 1:
        told += ", and gives the transactions of one client to several sessions"
    if limits in ("0", "0ms"):
        told += ". It passes on no TCP settings, so a relay's lost node is noticed as late as the server's defaults say"
    return [
        Check(
            "pooler",
            "warn",
            told,
            "Give the relay a DSN of its own, straight to the server; through a pooler it works in transaction or "
            "session mode, and never in statement mode. Each relay holds one server connection of the pool for good "
            "and needs more for moments: with n relays, those of a rolling update included, default_pool_size takes "
            "n + 1 at least, better 2n",
        )
    ]
