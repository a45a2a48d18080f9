"""The log store's connections: each is asked, before it is used, whether it leads to the database that we know."""

import asyncio
import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from quiesce.errors import DatabaseReplaced, IntakeClosed, SettingsError, Unavailable
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import schema
from quiesce.postgres.connections import CONNECTION_LOST, RELAY, Connector, Probing
from quiesce.postgres.driver import Connection
from quiesce.postgres.lane_records import PooledConnector
from quiesce.postgres.relay_connections import DIED, RelayConnections
from quiesce.postgres.server_identity import replaced

logger = logging.getLogger("quiesce.postgres")

# What the client waits longer than the server, so that the server's limit, which says more, comes first.
_GRACE = 1.0


# The statements walk indexes in their order. The planner may think little of that while its statistics are old, and
# one plan does for every page.
_PLANNER = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}
_SETTINGS_HOLD = "SELECT 1 WHERE current_setting('plan_cache_mode') = 'force_generic_plan'"


@dataclass(frozen=True, slots=True)
class _Reading(Probing):
    settings: Mapping[str, str] = field(default_factory=dict)

    def server_settings(self) -> dict[str, str]:
        return {**Probing.server_settings(self), **self.settings}


class LogConnections:
    """One statement at a time, each a transaction of its own, on one connection or the next. Durations are seconds.

    A pooler before the server takes no settings for a session, and keeps no prepared statement. Where the settings do
    not hold, each statement brings them along in a transaction of its own, which costs two exchanges more.
    """

    def __init__(self, dsn: str, name: str, *, connect_timeout: float, statement_timeout: float) -> None:
        self._dsn = dsn
        self._name = name
        self._connect_timeout = connect_timeout
        self._statement_timeout = statement_timeout
        self._settings = {"statement_timeout": str(max(1, round(statement_timeout * 1000))), **_PLANNER}
        probing = _Reading(RELAY.idle, RELAY.interval, RELAY.count, RELAY.unacknowledged, settings=self._settings)
        self._connections = RelayConnections(dsn, name, connect_timeout, Connector(probing))
        self._known: weakref.WeakSet[Connection] = weakref.WeakSet()
        self.pooled = False
        """Whether there is a pooler before the server that gives statements to sessions as it likes."""

    @property
    def closed(self) -> bool:
        return self._connections.closed

    def reopen(self) -> None:
        self._connections.reopen()

    async def close(self, deadline: Deadline) -> int:
        """See `RelayConnections.close`."""
        return await self._connections.close(deadline)

    async def take(self) -> Connection:
        """A connection to the database that we know, to be given back or terminated.

        Raises:
            Unavailable, SettingsError, IntakeClosed: see `RelayConnections.take`.
            DatabaseReplaced: the server, its history or its transaction numbers are not those of the cursors.
            SchemaMissing: the tables are not there.
        """
        connection = await self._connections.take()
        if connection in self._known:
            return connection
        usable = False
        try:
            async with asyncio.timeout(self._statement_timeout + _GRACE):
                if not self.pooled and await connection.execute(_SETTINGS_HOLD) != "SELECT 1":
                    connection.terminate()
                    return await self._take_pooled()
                async with connection.transaction():
                    await schema.require(connection)
                    difference = await replaced(connection)
            usable = not difference.why
        except CONNECTION_LOST as error:
            raise Unavailable(f"{self._name}: the database went away: {error}") from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise SettingsError(f"{self._name}: the relay's user may not read the outbox's tables: {error}") from error
        finally:
            if not usable:
                connection.terminate()
        if difference.why:
            raise DatabaseReplaced(
                f"{self._name}: this is not the database that the relay's cursors were written in: "
                f"{'; '.join(difference.why)}. To go on from here: quiesce outbox rebase"
            )
        self._known.add(connection)
        return connection

    async def _take_pooled(self) -> Connection:
        logger.info("%s: settings of a session do not hold, so there is a pooler; going on in transactions", self._name)
        self.pooled = True
        self._connections.drop_idle()
        self._connections = RelayConnections(self._dsn, self._name, self._connect_timeout, PooledConnector())
        return await self.take()

    def give_back(self, connection: Connection | None) -> None:
        self._connections.give_back(connection)

    async def fetch(
        self, statement: str, *values: Any, record_class: type[asyncpg.Record] = asyncpg.Record
    ) -> Sequence[asyncpg.Record]:
        """Runs a statement that may be sent twice: where an idle connection turns out to be dead, on another one.

        Raises:
            As `take`, and
            Unavailable: the database went away, or did not answer in time; whether it was carried out is unknown.
        """
        reused = self._connections.has_idle
        try:
            return await self._fetch(statement, values, record_class)
        except Unavailable as error:
            if not (reused and isinstance(error.__cause__, DIED)):
                raise
        self._connections.drop_idle()
        return await self._fetch(statement, values, record_class)

    async def _fetch(
        self, statement: str, values: Sequence[Any], record_class: type[asyncpg.Record]
    ) -> Sequence[asyncpg.Record]:
        connection = await self.take()
        usable: Connection | None = None
        try:
            async with asyncio.timeout(self._statement_timeout + _GRACE):
                rows = await self._run(connection, statement, values, record_class)
            if self.closed:
                raise IntakeClosed(f"{self._name} is closed")
            usable = connection
            return rows
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
            raise schema.missing(str(error)) from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise SettingsError(f"{self._name}: the relay's user may not do this: {error}") from error
        except (*CONNECTION_LOST, asyncpg.TransactionRollbackError) as error:
            told = str(error) or f"no answer within {self._statement_timeout} s"
            raise Unavailable(f"{self._name}: {told}") from error
        finally:
            if usable is None:
                connection.terminate()
            self._connections.give_back(usable)

    async def _run(
        self, connection: Connection, statement: str, values: Sequence[Any], record_class: type[asyncpg.Record]
    ) -> Sequence[asyncpg.Record]:
        if not self.pooled:
            return await connection.fetch(statement, *values, record_class=record_class)
        settings = "; ".join(f"SET LOCAL {name} = {value}" for name, value in self._settings.items())
        await connection.execute(f"BEGIN ISOLATION LEVEL READ COMMITTED; {settings}")
        rows = await connection.fetch(statement, *values, record_class=record_class)
        await connection.execute("COMMIT")
        return rows
