"""The inbox's tables, brought to this package's version through asyncpg. `quiesce.inbox.schema_steps` has the steps."""

from quiesce.inbox.schema_steps import INBOX, schema_missing
from quiesce.postgres import migrating
from quiesce.postgres.driver import AnyConnection


async def apply(connection: AnyConnection, *, lock_timeout: float = 30.0) -> int:
    """As `schema.apply`, for the inbox: returns the version that the tables then have.

    Raises:
        Unavailable: another process, or a statement on the tables, held a lock for longer than `lock_timeout` seconds.
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
        raise schema_missing(detail)
