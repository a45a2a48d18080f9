"""Which cluster and which tables a connection leads to, and on which history. What cursors mean depends on all."""

from dataclasses import dataclass

from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.lane_rows import EVERY

# When the server was started, and when its statistics began. A crash of one session makes it start all others anew: the
# first of the two stays, the second does not, since statistics are given up in each recovery. An operator who resets
# them by hand begins a new life for nothing. Both are for everybody to see.
LIFE = """(
    extract(epoch FROM pg_postmaster_start_time())::text
    || coalesce(' ' || extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time())::text, '')
)"""
"""Another text whenever the server may have forgotten what it had shown: a commit that nobody waited for
(`synchronous_commit=off`) can be read before it is on the disk, and after a crash its position and its transaction
number are given out once more. Digits, dots and a blank."""

# The timeline from the name of the file that is being written: the control file tells it only after a checkpoint.
_READ = f"""
SELECT s.system_identifier, {LIFE} AS life,
    CASE WHEN pg_is_in_recovery() THEN NULL
         ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END AS timeline,
    pg_snapshot_xmax(pg_current_snapshot())::text AS xmax,
    (SELECT oid FROM pg_database WHERE datname = current_database()) AS database_oid,
    'outbox_control'::regclass::oid AS table_oid
FROM pg_control_system() AS s
"""  # noqa: S608 - a piece of our own
_RECORDED = "SELECT system_identifier, timeline, database_oid, table_oid FROM outbox_control"
_AHEAD = f"""
SELECT count(*) FROM {EVERY} AS lane
WHERE pg_snapshot_xmax(seen) > pg_snapshot_xmax(pg_current_snapshot())
    OR pg_snapshot_xmax(until) > pg_snapshot_xmax(pg_current_snapshot())
"""  # noqa: S608 - a piece of our own


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """`timeline` is None on a standby, which writes none of its own."""

    system_identifier: int
    timeline: int | None
    xmax: int
    """The next transaction number that no statement had seen ended."""
    database_oid: int
    """A copy has its own, and so has a database that was restored beside others of its cluster."""
    table_oid: int
    """Of `outbox_control`: changed where the tables were restored into the same database."""
    life: str
    """See `LIFE`."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What differs between the database that the cursors were written in and the one they stand in now."""

    now: ServerIdentity
    system_identifier: int | None
    timeline: int | None
    database_oid: int | None
    table_oid: int | None
    lanes_ahead: int
    """Lanes whose cursor has seen transactions that this server has not had yet."""

    @property
    def why(self) -> list[str]:
        """One sentence a difference; empty where nothing says that the database was replaced."""
        told = []
        if self.system_identifier not in (None, self.now.system_identifier):
            told.append(
                f"cluster {self.now.system_identifier}, was {self.system_identifier}: another server, or restored"
            )
        elif self.database_oid not in (None, self.now.database_oid):
            # Numbers of another cluster's catalog would tell nothing.
            told.append(
                f"database with the oid {self.now.database_oid}, was {self.database_oid}: a copy in the same cluster, "
                "or restored beside the original"
            )
        elif self.table_oid not in (None, self.now.table_oid):
            told.append(
                f"tables with the oid {self.now.table_oid}, were {self.table_oid}: dropped, and restored into the same "
                "database"
            )
        if self.now.timeline is not None and self.timeline not in (None, self.now.timeline):
            told.append(
                f"timeline {self.now.timeline}, was {self.timeline}: a failover, or a recovery to a point in time"
            )
        if self.lanes_ahead:
            told.append(
                f"the cursors of {self.lanes_ahead} lanes have seen transactions beyond {self.now.xmax}, which this "
                "server has not had yet"
            )
        return told


async def server_identity(connection: AnyConnection) -> ServerIdentity:
    """Of the server that answers now."""
    row = await connection.fetchrow(_READ)
    assert row is not None, "a function's one row"
    return ServerIdentity(
        row["system_identifier"], row["timeline"], int(row["xmax"]), row["database_oid"], row["table_oid"], row["life"]
    )


async def replaced(connection: AnyConnection) -> Replaced:
    """Compares what the outbox recorded with the server that answers now."""
    row = await connection.fetchrow(_RECORDED)
    system_identifier, timeline, database, table = (None,) * 4 if row is None else row
    now = await server_identity(connection)
    return Replaced(now, system_identifier, timeline, database, table, await connection.fetchval(_AHEAD))
