"""A connection for the time of a statement or two: of the application's pool, or one of our own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from quiesce.errors import Unavailable
from quiesce.inbox.schema_steps import schema_missing
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres.connections import CONNECTION_LOST
from quiesce.postgres.driver import AnyConnection, Pool
from quiesce.postgres.relay_connections import RelayConnections


class Borrowing:
    """Gives connections to tables of the inbox, and says in the words of this package what went wrong on them.

    `connect_timeout` bounds the opening of a connection, or the wait for one of the pool. Seconds.
    """

    def __init__(self, dsn_or_pool: "str | Pool", name: str, connect_timeout: float) -> None:
        self._name = name
        self._timeout = connect_timeout
        self._source = (
            RelayConnections(dsn_or_pool, name, connect_timeout) if isinstance(dsn_or_pool, str) else dsn_or_pool
        )

    def reopen(self) -> None:
        if isinstance(self._source, RelayConnections):
            self._source.reopen()

    async def close(self, deadline: Deadline) -> int:
        """Closes those of our own. Returns how many had to be cut, since the server did not answer."""
        return await self._source.close(deadline) if isinstance(self._source, RelayConnections) else 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AnyConnection]:
        """
        Raises:
            Unavailable: the server cannot be reached, or went away, or somebody else was quicker.
            SchemaMissing: a table is not there. The message names the command.
            SettingsError: the DSN is wrong, or the server refuses the user.
            IntakeClosed: it is closed.
        """
        try:
            if isinstance(self._source, RelayConnections):
                async with _own(self._source) as connection:
                    yield connection
            else:
                async with self._source.acquire(timeout=self._timeout) as pooled:
                    yield pooled
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
            raise schema_missing(str(error)) from error
        except CONNECTION_LOST as error:
            told = str(error) or type(error).__name__
            raise Unavailable(f"{self._name}: the database did not answer: {told}") from error
        except asyncpg.TransactionRollbackError as error:
            raise Unavailable(f"{self._name}: {error}") from error


@asynccontextmanager
async def _own(connections: RelayConnections) -> AsyncIterator[AnyConnection]:
    connection = await connections.take()
    try:
        yield connection
    except asyncpg.PostgresError:
        # The server's word on a statement. One that says that the connection ends is found closed when it is taken.
        connections.give_back(connection)
        raise
    except BaseException:
        # It may be in the middle of anything.
        connection.terminate()
        raise
    else:
        connections.give_back(connection)
