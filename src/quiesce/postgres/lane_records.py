"""What the table says of its lanes' owners, and ending an owner that is frozen: with a connection for the moment."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from quiesce.errors import SettingsError, Unavailable
from quiesce.postgres import lane_statements as sql
from quiesce.postgres import schema
from quiesce.postgres.connections import CONNECTION_LOST, RELAY, Connector, close_connection, open_connection
from quiesce.postgres.driver import Connection

# What the client waits longer than the server.
_GRACE = 1.0


class PooledConnector(Connector):
    """A relay's connector whose connections keep no prepared statements, which would be lost behind a pooler."""

    def __init__(self) -> None:
        super().__init__(RELAY)

    async def __call__(self, dsn: str | None = None, **options: Any) -> Connection:
        return await super().__call__(dsn, **{"statement_cache_size": 0, **options})


class LaneRecords:
    """Ordinary statements, each in a transaction of its own on a connection of its own that is closed afterwards.

    They are few: one when lanes are taken, one when an owner is suspected to be frozen. So a member without lanes keeps
    a single connection.
    """

    def __init__(
        self, connector: Connector, dsn: str, name: str, *, connect_timeout: float, statement_timeout: float
    ) -> None:
        self._connector = connector
        self._dsn = dsn
        self._name = name
        self._connect_timeout = connect_timeout
        self._statement_timeout = statement_timeout
        self._owner = f"{name} on {socket.gethostname()}, process {os.getpid()}"

    async def own(self, badge: int, lanes: Iterable[int]) -> dict[int, int]:
        """Raises the epochs of lanes that the session with this badge has locked. Returns the new epochs.

        A former owner that is still about can move its cursor no more; what it moved before counts.

        Raises:
            Unavailable: the server cannot be reached now, or is not the one that holds the locks, or a former owner
                holds the row of a lane.
            SettingsError: the user may not update the table.
            SchemaMissing: there is no table `outbox_lane`.
        """
        wanted = set(lanes)
        async with self._transaction() as connection:
            epochs: dict[int, int] = {}
            # Once more for those that a former owner was about to write: they are locked since.
            for _ in range(2):
                left = ",".join(map(str, sorted(wanted - epochs.keys())))
                rows = await connection.fetch(sql.OWN, str(badge), f"{{{left}}}", self._owner) if left else []
                epochs.update((int(lane), int(epoch)) for lane, epoch in rows)
        if epochs.keys() != wanted:
            missing = ", ".join(map(str, sorted(wanted - epochs.keys())))
            raise Unavailable(
                f"{self._name}: lane {missing} could not be owned: it has no row in outbox_lane, or its lock is held "
                "on another server than the one that answers now"
            )
        return epochs

    async def end_frozen(self, after: float) -> int:
        """Ends the sessions of owners that did nothing for `after` seconds and have something to send.

        Returns how many lanes that frees. Raises as `own`.
        """
        async with self._transaction() as connection:
            tag = await connection.execute(sql.end_frozen(after))
        return int(tag.rpartition(" ")[2])

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        limit = max(1, round(self._statement_timeout * 1000))
        connection = await open_connection(self._connector, self._dsn, self._name, self._connect_timeout)
        usable = False
        try:
            async with asyncio.timeout(self._statement_timeout + _GRACE):
                await connection.execute(
                    f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = {limit}; "
                    f"SET LOCAL idle_in_transaction_session_timeout = {limit}"
                )
                yield connection
                await connection.execute("COMMIT")
            usable = True
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
            raise schema.missing(str(error)) from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise SettingsError(f"{self._name}: the relay's user may not own lanes: {error}") from error
        except (*CONNECTION_LOST, asyncpg.TransactionRollbackError) as error:
            told = str(error) or f"no answer within {self._statement_timeout} s"
            raise Unavailable(f"{self._name}: asking for lanes failed: {told}") from error
        finally:
            if usable:
                await close_connection(connection, self._connect_timeout)
            else:
                connection.terminate()
