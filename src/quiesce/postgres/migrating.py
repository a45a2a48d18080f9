"""Tables of ours, brought to this package's version through asyncpg."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from quiesce.errors import SettingsError, Unavailable
from quiesce.migrations import LOCK, Migration, Tables
from quiesce.postgres.driver import AnyConnection

_PIECE = 2.0
"""Seconds of one try to get a lock. Relays and writers stand still behind it, and get over so much."""
_PAUSE = 1.0
"""Seconds between two tries, in which they go on."""


async def applied_version(connection: AnyConnection, tables: Tables) -> int:
    """The version of the tables that are there; 0 when there are none."""
    if await connection.fetchval("SELECT to_regclass($1)", tables.versions) is None:
        return 0
    version = await connection.fetchval(f"SELECT coalesce(max(version), 0) FROM {tables.versions}")  # noqa: S608 - ours
    return int(version)


async def foreign(connection: AnyConnection, tables: Tables) -> str | None:
    """Says so where the main table is there, and was not made by this package; None else."""
    there = await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", tables.main)
    if not there or await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", tables.versions):
        return None
    return f"a table {tables.main} is there that this package did not make: no {tables.versions} is beside it"


async def pending(connection: AnyConnection, tables: Tables) -> list[Migration]:
    """The steps that `apply` would run. Changes nothing.

    Raises:
        SettingsError: the user may not look, or a table of that name is there that is not ours.
    """
    with _refusals_told(tables):
        return await _pending(connection, tables)


async def apply(connection: AnyConnection, tables: Tables, lock_timeout: float) -> int:
    """Brings the tables to the version of this package and returns the version they then have.

    Does nothing where they are that far, or further: a newer package's tables are left alone. All of it is one
    transaction (the caller's, if one is open). Another process that does the same is waited for, and so is whoever uses
    the tables, at most `lock_timeout` seconds: in pieces of 2, since others queue up behind who waits. A deadlock with
    them is tried again.

    Raises:
        Unavailable: another process, or a statement on the tables, held a lock for longer.
        SettingsError: the user may not create tables here, or what is there is not what this package made.
    """
    until = time.monotonic() + lock_timeout
    while True:
        wait = min(_PIECE, max(0.001, until - time.monotonic()))
        try:
            with _refusals_told(tables):
                return await _apply(connection, tables, wait)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if time.monotonic() + _PAUSE > until:
                raise Unavailable(f"the tables were locked by somebody else for {lock_timeout:g} s") from error
        await asyncio.sleep(_PAUSE)


async def _apply(connection: AnyConnection, tables: Tables, lock_timeout: float) -> int:
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = {max(1, round(lock_timeout * 1000))}")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        for step in await _pending(connection, tables):
            await connection.execute(step.sql)
        return await applied_version(connection, tables)


async def behind(connection: AnyConnection, tables: Tables) -> str | None:
    """None where the tables are at this package's version at least; else what to say of them, which may be nothing."""
    version = await applied_version(connection, tables)
    if version >= tables.latest_version():
        return None
    return f"its version is {version}, this package needs {tables.latest_version()}" if version else ""


async def _pending(connection: AnyConnection, tables: Tables) -> list[Migration]:
    if (told := await foreign(connection, tables)) is not None:
        raise SettingsError(
            f"{tables.apply_command}: {told}. Rename it, or put ours into another schema: ?search_path=NAME in the DSN"
        )
    applied = await applied_version(connection, tables)
    return [step for step in tables.migrations() if step.version > applied]


@contextmanager
def _refusals_told(tables: Tables) -> Iterator[None]:
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        raise SettingsError(
            f"database user: may not create the tables ({error}). Takes a user who owns the schema; "
            f"`quiesce {tables.part} schema show` prints the SQL for somebody else to run"
        ) from error
    except asyncpg.InvalidSchemaNameError as error:
        raise SettingsError(f"{tables.apply_command}: {error}. Takes a schema that is there: CREATE SCHEMA") from error
    except asyncpg.SyntaxOrAccessError as error:
        # Such as a column, a view or a function of another kind in the place of ours.
        raise SettingsError(
            f"{tables.apply_command}: what is there is not what this package made, and nothing was done: {error}. "
            f"`quiesce {tables.part} schema validate` tells the differences"
        ) from error
