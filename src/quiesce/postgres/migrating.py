"""Tables of ours, brought to this package's version through asyncpg."""

import asyncpg

from quiesce.errors import SettingsError, Unavailable
from quiesce.migrations import LOCK, Tables
from quiesce.postgres.driver import AnyConnection


async def applied_version(connection: AnyConnection, tables: Tables) -> int:
    """The version of the tables that are there; 0 when there are none."""
    if await connection.fetchval("SELECT to_regclass($1)", tables.versions) is None:
        return 0
    version = await connection.fetchval(f"SELECT coalesce(max(version), 0) FROM {tables.versions}")  # noqa: S608 - ours
    return int(version)


async def apply(connection: AnyConnection, tables: Tables, lock_timeout: float) -> int:
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
            applied = await applied_version(connection, tables)
            for step in tables.migrations():
                if step.version > applied:
                    await connection.execute(step.sql)
            return max(applied, tables.latest_version())
    except asyncpg.LockNotAvailableError as error:
        raise Unavailable(f"the tables were locked by somebody else for {lock_timeout:g} s") from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise SettingsError(
            f"database user: may not create the tables ({error}). Takes a user who owns the schema; "
            f"`quiesce {tables.part} schema show` prints the SQL for somebody else to run"
        ) from error


async def behind(connection: AnyConnection, tables: Tables) -> str | None:
    """None where the tables are at this package's version at least; else what to say of them, which may be nothing."""
    version = await applied_version(connection, tables)
    if version >= tables.latest_version():
        return None
    return f"its version is {version}, this package needs {tables.latest_version()}" if version else ""
