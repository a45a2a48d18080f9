"""The SQL of lane ownership.

**Locks.** A member of the outbox is one connection that sits idle in a transaction and holds advisory *transaction*
locks: one it shares with all other members (so that they can be counted), one of a random number that nobody else has
(its badge), and one for each lane that it owns. PostgreSQL drops them when the connection ends, however it ends. The
first number of each lock is that of the table, so outboxes in two schemas do not meet.

**No trace.** The statements on that connection go by the simple protocol: one of the extended protocol leaves its
snapshot behind until the next, and a snapshot in a transaction that never ends keeps VACUUM from cleaning up anywhere
in the database. asyncpg's simple protocol returns no rows, only how many there were; so each statement here says what
it has to say in a number of rows. None may read a table, whose lock would stay for as long as the transaction does.

**Single lanes.** There is no way to unlock a transaction lock but to end what took it. So each lane is locked below a
savepoint of its own, and the lane that was locked last can be let go by rolling back to it.

**Time.** `now()` is when the transaction began, here that is long ago; and what the server tells about its sessions is
remembered until the transaction ends, unless one asks to forget it.
"""

from collections.abc import Iterable
from math import ceil

from quiesce.postgres.connections import RELAY
from quiesce.postgres.lane_rows import newest

LANES = 16
"""How many lanes an outbox has."""

# Nothing but numbers of ours is written into the statements below.

_MEMBER = 16
FIRST_BADGE = 1 << 16
LAST_BADGE = (1 << 31) - 1

_OUTBOX = "'outbox_lane'::regclass::oid::int4"
# Set once more for the session itself: a pooler does not pass on what a connection asks for when it opens.
_TCP = {name: value for name, value in RELAY.server_settings().items() if name.startswith("tcp_")}
# Advisory locks of this outbox, each with the session that holds it. `me` is the asking session.
_HELD = """
pg_stat_get_activity(pg_backend_pid()) AS me
JOIN pg_locks AS held ON held.locktype = 'advisory' AND held.database = me.datid AND held.objsubid = 2
    AND held.classid = 'outbox_lane'::regclass::oid AND held.granted
CROSS JOIN LATERAL pg_stat_get_activity(held.pid) AS holder
"""


def begin(server_major: int, *, badge: int, statement_timeout: float, shown_as: str) -> str:
    """Opens the transaction that holds the locks, and joins the members. One row: nobody has the badge.

    It can write nothing, so it never gets a transaction number. No limit ends it. `statement_timeout` is in seconds.
    """
    limits = {
        "statement_timeout": str(max(1, round(statement_timeout * 1000))),
        "lock_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        **_TCP,
        "application_name": "'" + "".join(c for c in shown_as if c.isalnum() or c in " _.-:/")[:60] + "'",
    }
    if server_major >= 17:
        limits["transaction_timeout"] = "0"
    settings = "; ".join(f"SET LOCAL {name} = {value}" for name, value in limits.items())
    return (
        f"BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; {settings}; "
        f"SELECT pg_advisory_xact_lock_shared({_OUTBOX}, {_MEMBER}); "
        f"SELECT 1 WHERE pg_try_advisory_xact_lock({_OUTBOX}, {badge})"
    )


def joined(badge: int) -> str:
    """One row: this session holds the badge. None: a pooler has given this statement to another one."""
    return f"SELECT 1 FROM {_HELD} WHERE held.objid = {badge} AND held.pid = pg_backend_pid()"  # noqa: S608


def share(alive_within: float) -> str:
    """As many rows as lanes are due to this member. The shares of all members add up to all lanes.

    A member whose session did nothing for `alive_within` seconds takes no lanes now, so it is not counted. (What
    a session of another role does is hidden from those without `pg_read_all_stats`; it is counted.)
    """
    return f"""
SELECT pg_stat_clear_snapshot();
SELECT 1 FROM (
    SELECT count(*) AS members, count(*) FILTER (WHERE held.pid < pg_backend_pid()) AS before
    FROM {_HELD}
    WHERE held.objid = {_MEMBER} AND held.mode = 'ShareLock' AND (
        held.pid = pg_backend_pid()
        OR coalesce(holder.state_change > clock_timestamp() - interval '{alive_within:.3f} s', true)
    )
) AS counted
CROSS JOIN LATERAL generate_series(1, {LANES} / members + (before < {LANES} % members)::int)
"""  # noqa: S608


def take(lanes: Iterable[int]) -> str:
    """Locks the first of these lanes that nobody has. One row more than its number, or none."""
    wanted = ",".join(map(str, lanes))
    return f"""
SELECT 1 FROM (
    SELECT lane FROM unnest('{{{wanted}}}'::int[]) AS wanted(lane)
    WHERE pg_try_advisory_xact_lock({_OUTBOX}, lane) LIMIT 1
) AS taken
CROSS JOIN LATERAL generate_series(0, taken.lane)
"""  # noqa: S608


def _silent(after: float) -> str:
    return f"held.objid < {LANES} AND holder.state_change < clock_timestamp() - interval '{after:.3f} s'"


def silence(most: float) -> str:
    """A row for each tenth of a second that the most silent owner of a lane did nothing, up to `most` seconds."""
    return f"""
SELECT pg_stat_clear_snapshot();
SELECT 1 FROM (
    SELECT max(clock_timestamp() - holder.state_change) AS longest FROM {_HELD} WHERE held.objid < {LANES}
) AS silent
CROSS JOIN LATERAL generate_series(1, least(floor(10 * extract(epoch FROM longest)), {_tenths(most)})::int)
"""  # noqa: S608


def _tenths(seconds: float) -> int:
    return ceil(10 * seconds)


def silent_for(rows: int) -> float:
    """Seconds that so many rows of `silence` mean."""
    return rows / 10


def end_frozen(after: float) -> str:
    """Ends the sessions of silent owners whose lane has something to send and was not moved for `after` seconds.

    As many rows as lanes came free. Not for the lock connection: it reads tables.
    """
    return f"""
SELECT pg_terminate_backend(held.pid) FROM {_HELD}
CROSS JOIN LATERAL {newest("held.objid::int8")} AS moved
WHERE {_silent(after)}
    AND coalesce(moved.moved_at < clock_timestamp() - interval '{after:.3f} s', true)
    AND (
        moved.until IS NOT NULL
        OR EXISTS (SELECT FROM outbox_event AS new WHERE new.lane = moved.lane AND new.position > moved.last)
        OR EXISTS (
            SELECT FROM outbox_event AS late WHERE late.lane = moved.lane AND late.position <= moved.last
                AND late.xid >= pg_snapshot_xmax(moved.seen)
        )
        OR EXISTS (
            SELECT FROM outbox_event AS late WHERE late.lane = moved.lane AND late.position <= moved.last
                AND late.xid IN (SELECT pg_snapshot_xip(moved.seen))
        )
        OR EXISTS (
            SELECT FROM outbox_parked AS due WHERE due.lane = moved.lane AND due.state = 'retry'
                AND due.next_at <= clock_timestamp()
        )
    )
"""  # noqa: S608


OWN = f"""
WITH mine AS MATERIALIZED (
    SELECT locked.objid::int8 AS lane
    FROM pg_locks AS badge JOIN pg_locks AS locked USING (pid, locktype, database, classid, objsubid, granted)
    WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND classid = 'outbox_lane'::regclass::oid
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND badge.objid = $1::text::int8::oid
), turn AS MATERIALIZED (
    SELECT present.lane, present.version
    FROM unnest($2::text::smallint[]) AS wanted (lane)
    CROSS JOIN LATERAL ({newest("wanted.lane")} FOR UPDATE) AS present
    WHERE wanted.lane IN (SELECT lane FROM mine)
)
UPDATE outbox_lane AS lane SET epoch = lane.epoch + 1, version = lane.version + 1, owner = $3::text,
    owned_at = statement_timestamp()
FROM turn WHERE (lane.lane, lane.version) >= (turn.lane, turn.version)
    AND (lane.lane, lane.version) <= (turn.lane, turn.version)
RETURNING lane.lane, lane.epoch
"""  # noqa: S608 - a piece of our own
"""Raises the epoch of lanes, if the session with the badge `$1` has locked them on this very server. Rows are locked
in the order of `$2`. One that somebody wrote meanwhile is locked, and found by the next statement. For the comparisons
of rows see *Beliefs* in `log_statements`."""
