"""The tables, as versioned migrations that ship with the package."""

import re
from dataclasses import dataclass
from importlib.resources import files

import asyncpg

from quiesce.errors import SchemaMissing, SettingsError, Unavailable
from quiesce.outbox.refusals import schema_missing
from quiesce.postgres.driver import AnyConnection

# One number for all of our migrations; any will do that nobody else takes.
_LOCK = 0x7175_6965_7363_65
_MIGRATION = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema. Its SQL records its own version, so it may be run by psql as well."""

    version: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """All migrations of this package, oldest first."""
    found = []
    for file in files("quiesce.postgres").joinpath("migrations").iterdir():
        named = _MIGRATION.fullmatch(file.name)
        if named:
            found.append(Migration(int(named[1]), named[2], file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.version)


def latest_version() -> int:
    """The version that this package brings."""
    return migrations()[-1].version


def show() -> str:
    """The SQL of all migrations, to be read, or run by hand: `psql --single-transaction`."""
    return "\n".join(f"-- {step.version:04} {step.name}\n\n{step.sql}" for step in migrations())


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
            await connection.execute(f"SET LOCAL lock_timeout = {round(lock_timeout * 1000)}")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
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
