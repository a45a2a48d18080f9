"""The outbox's tables, brought to this package's version through asyncpg."""

from quiesce.errors import SchemaMissing, SettingsError
from quiesce.outbox.schema_steps import OUTBOX, Migration, latest_version, migrations, show
from quiesce.postgres import migrating
from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.encoding import MOVE, wrong_encoding
from quiesce.postgres.mapped_tables import mapped_tables

__all__ = [
    "Migration",
    "applied_version",
    "apply",
    "latest_version",
    "migrations",
    "missing",
    "pending",
    "require",
    "show",
]

missing = OUTBOX.missing
"""The error to raise when a table or a column is not there."""


async def applied_version(connection: AnyConnection) -> int:
    """The version of the tables that are there; 0 when there are none."""
    return await migrating.applied_version(connection, OUTBOX)


async def pending(connection: AnyConnection) -> list[Migration]:
    """The steps that `apply` would run. Changes nothing.

    Raises:
        SettingsError: the user may not look, or a table of that name is there that is not ours, or the database's
            encoding is SQL_ASCII.
    """
    await _refuse_encoding(connection)
    return await migrating.pending(connection, OUTBOX)


async def apply(connection: AnyConnection, *, lock_timeout: float = 30.0) -> int:
    """Brings the tables to the version of this package and returns the version they then have.

    Does nothing where they are that far, or further: a newer package's tables are left alone. All of it is one
    transaction (the caller's, if one is open). Another process that does the same is waited for, at most
    `lock_timeout` seconds.

    Raises:
        Unavailable: another process, or a statement on the tables, held a lock for longer.
        SettingsError: the user may not create tables here, or a table of that name is there that is not ours, or the
            database's encoding is SQL_ASCII.
    """
    await _refuse_encoding(connection)
    return await migrating.apply(connection, OUTBOX, lock_timeout)


async def require(connection: AnyConnection) -> None:
    """Makes sure that the tables are there, at least at this package's version.

    Raises:
        SchemaMissing: they are not. The message names the command.
    """
    detail = await migrating.behind(connection, OUTBOX)
    if detail is None:
        return
    if (told := await migrating.foreign(connection, OUTBOX)) is not None:
        raise SchemaMissing(
            f"{told}. Relays publish such a table by `OutboxTable`; `quiesce outbox` and the log store know their own "
            "tables only, which may be in another schema: add ?search_path= to the DSN, then run: "
            f"{OUTBOX.apply_command}"
        )
    raise missing(detail or await mapped_tables(connection))


async def _refuse_encoding(connection: AnyConnection) -> None:
    if (wrong := await wrong_encoding(connection)) is not None:
        raise SettingsError(f"{OUTBOX.apply_command}: {wrong}. {MOVE}")
