"""The tables, brought to this package's version through asyncpg."""

import asyncpg

from quiesce.errors import SchemaMissing, SettingsError, Unavailable
from quiesce.outbox.refusals import schema_missing
from quiesce.outbox.schema_steps import LOCK, Migration, latest_version, migrations, show
from quiesce.postgres.driver import AnyConnection

__all__ = ["Migration", "applied_version", "apply", "latest_version", "migrations", "missing", "require", "show"]


async def applied_version(connection: AnyConnection) -> int:
    """The version of the tables that are there; 0 when there are none."""
    if await connection.fetchval("SELECT to_regclass('quiesce_schema')") is None:
        return 0
    version = await connection.fetchval("SELECT coalesce(max(version), 0) FROM quiesce_schema")
    return int(version)


async def apply(connection: AnyConnection, *, lock_timeout: float = 30.0) -> int:
    """Brings the tables to the version of this package and returns the version they then have.

    Does nothing where they are that far, or further: a newer package's tables are left alone. All of it is one
    transaction (the caller's, if one is open). Another process that does the same is waited for, at most
    `lock_timeout` seconds.

    Raises:
        Unavailable: another process, or a statement on the tables, held a lock for longer.
        SettingsError: the user may not create tables here.
    """
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = {max(1, round(lock_timeout * 1000))}")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
            applied = await applied_version(connection)
            for step in migrations():
                if step.version > applied:
                    await connection.execute(step.sql)
            return max(applied, latest_version())
    except asyncpg.LockNotAvailableError as error:
        raise Unavailable(f"the tables were locked by somebody else for {lock_timeout:g} s") from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise SettingsError(
            f"database user: may not create the tables ({error}). Takes a user who owns the schema; "
            "`quiesce outbox schema show` prints the SQL for somebody else to run"
        ) from error


async def require(connection: AnyConnection) -> None:
    """Makes sure that the tables are there, at least at this package's version.

    Raises:
        SchemaMissing: they are not. The message names the command.
    """
    version = await applied_version(connection)
    if version < latest_version():
        raise missing(f"its version is {version}, this package needs {latest_version()}" if version else "")


def missing(detail: str = "") -> SchemaMissing:
    """The error to raise when a table or a column is not there."""
    return schema_missing(detail)
