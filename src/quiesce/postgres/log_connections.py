"""The log store's connections: each is asked, before it is used, whether it leads to the database that we know."""

import asyncio
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import asyncpg

from quiesce.errors import DatabaseReplaced, IntakeClosed, SettingsError, Unavailable
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import schema
from quiesce.postgres.connections import CONNECTION_LOST, RELAY, Connector
from quiesce.postgres.driver import Connection
from quiesce.postgres.lane_records import PooledConnector
from quiesce.postgres.relay_connections import DIED, RelayConnections
from quiesce.postgres.server_identity import LIFE, replaced

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
    # Those that somebody may have turned off for all.
    "enable_indexscan": "on",
    "enable_nestloop": "on",
    # A lane that has no page open is a NULL in an array.
    "array_nulls": "on",
}
_HOLD = "WHERE current_setting('plan_cache_mode') = 'force_generic_plan'"
_SETTINGS_HOLD = f"SELECT 1 {_HOLD}"
# A limit that older servers do not know. It would end the session of a relay that waits at the server.
_SETTINGS_HOLD_17 = f"SELECT set_config('transaction_timeout', '0', false) {_HOLD}"


# Of a pooler nobody knows yet: the first statement tells, and this one was not answered.
_LETS_IN = "it took the connection, and answers nothing: it is busy, or a pooler in between has no connection left"


class OtherLife(Unavailable):
    """The server was started anew, so the statement was not sent, or what it has told is of before."""


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
        limit = str(max(1, round(statement_timeout * 1000)))
        self._settings = {"statement_timeout": limit, "lock_timeout": "0", **_PLANNER}
        reading = replace(RELAY, session={**RELAY.session, **self._settings})
        self._connections = RelayConnections(dsn, name, connect_timeout, Connector(reading))
        self._lives: weakref.WeakKeyDictionary[Connection, str] = weakref.WeakKeyDictionary()
        self.life: str | None = None
        """The life of the server that was reached last, see `server_identity.LIFE`. No connection to an earlier one is
        used any more."""
        self.on_new_life: Callable[[], None] = lambda: None
        """Called when it changes, before anything is sent: what was read from the server before proves nothing now."""
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
        while (life := self._lives.get(connection)) is not None:
            if life == self.life:
                return connection
            connection.terminate()
            connection = await self._connections.take()
        usable = False
        try:
            async with asyncio.timeout(self._statement_timeout + _GRACE):
                if not self.pooled and not await _settings_hold(connection):
                    connection.terminate()
                    return await self._take_pooled()
                # No block: at its end it would say ROLLBACK, and wait for ever for a server that is silent.
                await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                await schema.require(connection)
                difference = await replaced(connection)
                await connection.execute("COMMIT")
            usable = not difference.why
        except CONNECTION_LOST as error:
            raise Unavailable(f"{self._name}: the database went away: {str(error) or _LETS_IN}") from error
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
        self._lives[connection] = difference.now.life
        self._note_life(difference.now.life)
        return connection

    def _note_life(self, life: str) -> None:
        former, self.life = self.life, life
        if former not in (None, life):
            self.on_new_life()

    async def _take_pooled(self) -> Connection:
        logger.info("%s: settings of a session do not hold, so there is a pooler; going on in transactions", self._name)
        self.pooled = True
        self._connections.drop_idle()
        self._connections = RelayConnections(self._dsn, self._name, self._connect_timeout, PooledConnector())
        return await self.take()

    def give_back(self, connection: Connection | None) -> None:
        self._connections.give_back(connection)

    async def fetch(
        self,
        statement: str,
        *values: Any,
        record_class: type[asyncpg.Record] = asyncpg.Record,
        life: str | None = None,
    ) -> Sequence[asyncpg.Record]:
        """Runs a statement that may be sent twice: where an idle connection turns out to be dead, on another one.

        With `life` only in that life of the server: for what goes by what was read in it.

        Raises:
            As `take`, and
            OtherLife: the server was started anew.
            Unavailable: the database went away, or did not answer in time; whether it was carried out is unknown.
        """
        reused = self._connections.has_idle
        try:
            return await self._fetch(statement, values, record_class, life)
        except Unavailable as error:
            died = reused and isinstance(error.__cause__, DIED)
            if not died and (life is not None or not isinstance(error, OtherLife)):
                raise
        self._connections.drop_idle()
        return await self._fetch(statement, values, record_class, life)

    async def _fetch(
        self, statement: str, values: Sequence[Any], record_class: type[asyncpg.Record], life: str | None
    ) -> Sequence[asyncpg.Record]:
        connection = await self.take()
        usable: Connection | None = None
        try:
            self._check_life(life)
            async with asyncio.timeout(self._statement_timeout + _GRACE):
                rows = await self._run(connection, statement, values, record_class)
            self._check_life(life)
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

    def _check_life(self, life: str | None) -> None:
        if life not in (None, self.life):
            raise OtherLife(f"{self._name}: the database was started anew since it was read")

    async def _run(
        self, connection: Connection, statement: str, values: Sequence[Any], record_class: type[asyncpg.Record]
    ) -> Sequence[asyncpg.Record]:
        if not self.pooled:
            return await connection.fetch(statement, *values, record_class=record_class)
        settings = "; ".join(f"SET LOCAL {name} = {value}" for name, value in self._settings.items())
        # The pooler stays while the server behind it goes and comes.
        begin = f"BEGIN ISOLATION LEVEL READ COMMITTED; {settings}; SELECT 1 WHERE {LIFE} = '{self.life}'"
        if await connection.execute(begin) != "SELECT 1":
            # The next one is looked at anew, which tells the life.
            self._connections.drop_idle()
            raise OtherLife(f"{self._name}: the database was started anew behind its pooler")
        rows = await connection.fetch(statement, *values, record_class=record_class)
        await connection.execute("COMMIT")
        return rows


async def _settings_hold(connection: Connection) -> bool:
    """Whether this session has what was asked for when it was opened."""
    newer = connection.get_server_version().major >= 17
    return await connection.execute(_SETTINGS_HOLD_17 if newer else _SETTINGS_HOLD) == "SELECT 1"
