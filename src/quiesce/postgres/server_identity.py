"""Which cluster a connection leads to, and on which history. What cursors mean depends on both."""

from dataclasses import dataclass

from quiesce.postgres.driver import AnyConnection

# The timeline from the name of the file that is being written: the control file tells it only after a checkpoint.
_READ = """
SELECT s.system_identifier,
    CASE WHEN pg_is_in_recovery() THEN NULL
         ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END AS timeline,
    pg_snapshot_xmax(pg_current_snapshot())::text AS xmax
FROM pg_control_system() AS s
"""
_RECORDED = "SELECT system_identifier, timeline FROM outbox_control"
_AHEAD = """
SELECT count(*) FROM outbox_lane
WHERE pg_snapshot_xmax(seen) > pg_snapshot_xmax(pg_current_snapshot())
    OR pg_snapshot_xmax(until) > pg_snapshot_xmax(pg_current_snapshot())
"""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """`timeline` is None on a standby, which writes none of its own."""

    system_identifier: int
    timeline: int | None
    xmax: int
    """The next transaction number that no statement had seen ended."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What differs between the database that the cursors were written in and the one they stand in now."""

    now: ServerIdentity
    system_identifier: int | None
    timeline: int | None
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
    return ServerIdentity(row["system_identifier"], row["timeline"], int(row["xmax"]))


async def replaced(connection: AnyConnection) -> Replaced:
    """Compares what the outbox recorded with the server that answers now."""
    recorded = await connection.fetchrow(_RECORDED)
    now = await server_identity(connection)
    system_identifier, timeline = (None, None) if recorded is None else recorded
    return Replaced(now, system_identifier, timeline, await connection.fetchval(_AHEAD))
