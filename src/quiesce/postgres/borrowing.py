"""A connection for the time of a statement or two: of the application's pool, or one of our own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

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
    async def connection(self, within: float) -> AsyncIterator[AnyConnection]:
        """A connection for so many seconds, once there is one. Then it is cut, and whoever waits on it told.

        Only that ends every wait: BEGIN and ROLLBACK know no time limit, and a cancel waits for the server's word.

        Raises:
            Unavailable: the server cannot be reached, went away, or hangs, or somebody else was quicker.
            SchemaMissing: a table is not there. The message names the command.
            SettingsError: the DSN is wrong, or the server refuses the user.
            IntakeClosed: it is closed.
        """
        try:
            if isinstance(self._source, RelayConnections):
                connection = await self._source.take()
                try:
                    async with _cut_unless_it_answers(connection, within):
                        yield connection
                finally:
                    # One that is cut is found closed when it is taken.
                    self._source.give_back(connection)
            else:
                async with (
                    self._source.acquire(timeout=self._timeout) as pooled,
                    _cut_unless_it_answers(pooled, within),
                ):
                    yield pooled
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
            raise schema_missing(str(error)) from error
        except CONNECTION_LOST as error:
            told = str(error) or type(error).__name__
            raise Unavailable(f"{self._name}: the database did not answer: {told}") from error
        except asyncpg.TransactionRollbackError as error:
            raise Unavailable(f"{self._name}: {error}") from error

    @asynccontextmanager
    async def transaction(self, within: float) -> AsyncIterator[AnyConnection]:
        """The same with a transaction on it. Where anything fails the connection is cut: that rolls back, too."""
        async with self.connection(within) as connection:
            transaction = connection.transaction()
            try:
                await transaction.start()
                yield connection
                await transaction.commit()
            except BaseException:
                _cut(connection)
                raise


@asynccontextmanager
async def _cut_unless_it_answers(connection: AnyConnection, within: float) -> AsyncIterator[None]:
    late = False

    def cut_late() -> None:
        nonlocal late
        late = True
        _cut(connection)

    timer = asyncio.get_running_loop().call_later(within, cut_late)
    try:
        yield
    except asyncpg.PostgresError:
        # The server's word on a statement.
        raise
    except AttributeError as error:
        if not late:
            _cut(connection)
            raise
        # Which is all that asyncpg says of a cut between two steps of a statement.
        raise asyncpg.InterfaceError(f"it was cut after {within:g} s") from error
    except BaseException:
        # It may be in the middle of anything.
        _cut(connection)
        raise
    finally:
        timer.cancel()


def _cut(connection: AnyConnection) -> None:
    with suppress(asyncpg.InterfaceError):
        connection.terminate()
