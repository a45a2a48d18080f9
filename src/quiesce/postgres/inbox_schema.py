"""The inbox's tables, brought to this package's version through asyncpg."""

from quiesce.errors import SchemaMissing
from quiesce.inbox.schema_steps import INBOX, schema_missing
from quiesce.migrations import Migration
from quiesce.postgres import migrating
from quiesce.postgres.driver import AnyConnection

__all__ = ["applied_version", "apply", "latest_version", "migrations", "missing", "require", "show"]


async def applied_version(connection: AnyConnection) -> int:
    """The version of the tables that are there; 0 when there are none."""
    return await migrating.applied_version(connection, INBOX)


async def apply(connection: AnyConnection, *, lock_timeout: float = 30.0) -> int:
    """Brings the tables to the version of this package and returns the version they then have.

    Does nothing where they are that far, or further: a newer package's tables are left alone. All of it is one
    transaction (the caller's, if one is open). Another process that does the same is waited for, at most
    `lock_timeout` seconds.

    Raises:
        Unavailable: another process, or a statement on the tables, held a lock for longer.
        SettingsError: the user may not create tables here.
    """
    return await migrating.apply(connection, INBOX, lock_timeout)


async def require(connection: AnyConnection) -> None:
    """Makes sure that the tables are there, at least at this package's version.

    Raises:
        SchemaMissing: they are not. The message names the command.
    """
    detail = await migrating.behind(connection, INBOX)
    if detail is not None:
        raise missing(detail)


def missing(detail: str = "") -> SchemaMissing:
    """The error to raise when a table or a column is not there."""
    return schema_missing(detail)


def migrations() -> list[Migration]:
    """All migrations of this package, oldest first."""
    return INBOX.migrations()


def latest_version() -> int:
    """The version that this package brings."""
    return INBOX.latest_version()


def show() -> str:
    """The SQL of all migrations, to be read, or run by hand: `psql --single-transaction`."""
    return INBOX.show()
