"""A relay's own connections: opened when needed, kept while they live, never the application's."""

import asyncio
import time

import asyncpg

from quiesce.errors import IntakeClosed, SettingsError
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres.connections import RELAY, Connector, close_connection, open_connection
from quiesce.postgres.driver import Connection

_OLDEST_SERVER = 14

DIED = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.IdleSessionTimeoutError,
    ConnectionError,
)
"""What a connection says that died while nobody used it. It tells nothing about the server now."""


class RelayConnections:
    """Hands out one connection at a time to each taker. How many there are is the takers' business."""

    def __init__(self, dsn: str, name: str, connect_timeout: float, connector: Connector | None = None) -> None:
        self._dsn = dsn
        self._name = name
        self._connect_timeout = connect_timeout
        self._connector = connector or Connector(RELAY)
        self._idle: list[Connection] = []
        self._closed = False
        self.opened = 0
        """How many connections were ever opened. A new one may have led to another server."""

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def has_idle(self) -> bool:
        return bool(self._idle)

    def reopen(self) -> None:
        self._closed = False

    async def take(self) -> Connection:
        """An idle connection, or a new one.

        Raises:
            Unavailable: the server cannot be reached now.
            SettingsError: the DSN is wrong, the server refuses the user, or it is older than PostgreSQL 14.
            IntakeClosed: `close` was called.
        """
        if self._closed:
            raise IntakeClosed(f"{self._name} is closed")
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            connection.terminate()
        connection = await open_connection(self._connector, self._dsn, self._name, self._connect_timeout)
        major = connection.get_server_version().major
        if major < _OLDEST_SERVER:
            connection.terminate()
            raise SettingsError(f"{self._name}: got PostgreSQL {major}, takes {_OLDEST_SERVER} or newer")
        self.opened += 1
        return connection

    def give_back(self, connection: Connection | None) -> None:
        """Keeps the connection for the next taker. It must not be in a transaction. None is ignored."""
        if connection is None:
            return
        if self._closed:
            connection.terminate()
        else:
            self._idle.append(connection)

    def drop_idle(self) -> None:
        """Cuts the idle ones: where one has died, the others mostly have too."""
        while self._idle:
            self._idle.pop().terminate()

    async def close(self, deadline: Deadline) -> int:
        """Closes the idle ones by the deadline. Returns how many had to be cut, since the server did not answer."""
        self._closed = True
        idle, self._idle = self._idle, []
        bound = deadline.remaining(time.monotonic())
        closing = [close_connection(connection, bound) for connection in idle]
        return (await asyncio.gather(*closing)).count(False)
