"""Opening connections that neither side can lose without noticing, and telling why one could not be opened."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from quiesce.errors import QuiesceError, SettingsError, Unavailable
from quiesce.postgres.driver import Connection
from quiesce.postgres.dsn import redact_dsn, without_user

logger = logging.getLogger("quiesce.postgres")


_EXAMPLE = "postgresql://user:password@host:5432/database"


@dataclass(frozen=True, slots=True)
class Probing:
    """How soon each side notices that the other has vanished without a word. Seconds.

    An idle connection is probed after `idle`, then every `interval`, and given up after `count` probes without
    an answer; data that nobody acknowledges for `unacknowledged` end it too. While a statement runs, the server
    looks every `check` whether its client is still there, so that a killed client's locks do not outlive it.
    """

    idle: int
    interval: int
    count: int
    unacknowledged: float
    check: float = 1.0
    session: Mapping[str, str] = field(default_factory=dict)
    """What the connection's statements count on beside that: settings of the session."""

    def server_settings(self) -> dict[str, str]:
        """For the server's end."""
        return {
            **self.session,
            "tcp_keepalives_idle": str(self.idle),
            "tcp_keepalives_interval": str(self.interval),
            "tcp_keepalives_count": str(self.count),
            "tcp_user_timeout": str(round(self.unacknowledged * 1000)),
            "client_connection_check_interval": str(round(self.check * 1000)),
        }

    def apply(self, connected: socket.socket) -> None:
        """For our end. A Unix socket needs none of it: the kernel tells at once."""
        if connected.family not in (socket.AF_INET, socket.AF_INET6):
            return
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # Not every platform has each of them.
        for option, value in (
            ("TCP_KEEPIDLE", self.idle),
            ("TCP_KEEPINTVL", self.interval),
            ("TCP_KEEPCNT", self.count),
            ("TCP_USER_TIMEOUT", round(self.unacknowledged * 1000)),
        ):
            number = getattr(socket, option, None)
            if number is not None:
                connected.setsockopt(socket.IPPROTO_TCP, number, value)


APPLICATION = Probing(idle=15, interval=5, count=3, unacknowledged=30.0)
"""For the application's pool: patient, since a connection that is lost costs somebody a request."""

RELAY = Probing(
    idle=2,
    interval=1,
    count=2,
    unacknowledged=4.0,
    session={
        # `ALTER DATABASE ... SET` and `ALTER ROLE ... SET` are made for applications. One snapshot for a whole
        # transaction is not what a relay watches with, read-only it settles nothing, its waits have bounds of its
        # own, and it keeps what it has opened.
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        "lock_timeout": "0",
        "idle_session_timeout": "0",
    },
)
"""For a relay: its rows must be free again within five seconds of losing its node."""


class Connector:
    """Calls `asyncpg.connect` and makes both ends probe. It has the shape that `asyncpg.create_pool(connect=)` takes.

    A pooler between us and the server may refuse settings it does not know; then it goes on without them, for good.
    """

    def __init__(self, probing: Probing) -> None:
        self._probing = probing
        self._settings = probing.server_settings()

    async def __call__(
        self, dsn: str | None = None, *, server_settings: Mapping[str, str] | None = None, **options: Any
    ) -> Connection:
        if not dsn:
            # asyncpg would look for a server by itself.
            raise asyncpg.ClientConfigurationError("no DSN")
        own = dict(server_settings or {})
        try:
            connection: Connection = await asyncpg.connect(dsn, server_settings={**self._settings, **own}, **options)
        except (asyncpg.ProtocolViolationError, asyncpg.InvalidParameterValueError, asyncpg.UndefinedObjectError):
            if not self._settings:
                raise
            connection = await asyncpg.connect(dsn, server_settings=own, **options)
            logger.info("the server, or a pooler before it, does not take TCP settings; going on without them")
            self._settings = {}
        # asyncpg neither hands out its socket nor takes one, hence the look at a private name. Without keepalive a
        # half-open connection is silent for hours.
        transport: asyncio.BaseTransport | None = getattr(connection, "_transport", None)
        connected = transport.get_extra_info("socket") if transport is not None else None
        if connected is not None:
            self._probing.apply(connected)
        return connection


def why_not_connected(error: Exception, name: str, dsn: str) -> QuiesceError | None:
    """What a failed `connect` means: `Unavailable` where waiting helps, `SettingsError` where it does not.

    None for an error that says nothing about the server or the settings. `name` is what the DSN is for.
    """
    shown = redact_dsn(dsn)
    # What passes is told to whoever asks for readiness: where the server is, and not as whom we come.
    where = without_user(shown)
    told = " ".join(str(error).split()) or type(error).__name__
    match error:
        case asyncpg.ClientConfigurationError() | ValueError() | OverflowError() if not isinstance(error, ssl.SSLError):
            # Not what asyncpg says: it may quote a piece of the password.
            return SettingsError(f"{name}: got DSN {shown!r}, takes {_EXAMPLE}")
        case asyncpg.InvalidAuthorizationSpecificationError() | asyncpg.InsufficientPrivilegeError():
            return SettingsError(f"{name}: {shown} refuses the user: {told}. Takes a user who may connect")
        case asyncpg.InvalidCatalogNameError():
            return SettingsError(f"{name}: {shown} has no such database: {told}. Takes one that exists")
        case asyncpg.InvalidParameterValueError() | asyncpg.UndefinedObjectError():
            return SettingsError(f"{name}: {shown} refuses a setting: {told}")
        case ssl.SSLCertVerificationError():
            return SettingsError(f"{name}: {shown} has a certificate that is not trusted: {told}")
        case ConnectionError() if "rejected SSL upgrade" in told:
            return SettingsError(f"{name}: {shown} does not speak TLS. Takes sslmode=prefer, or a server with TLS")
        case TimeoutError():
            return Unavailable(f"{name}: {where} did not answer in time")
        case OSError() | asyncpg.PostgresError() | asyncpg.TargetServerAttributeNotMatched():
            return Unavailable(f"{name}: {where} cannot be reached now: {told}")
        case asyncpg.InterfaceError():
            return SettingsError(f"{name}: {shown} cannot be used: {told}")
    return None


CONNECTION_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # What asyncpg says between the server's last word and the end of the stream.
    asyncpg.InternalClientError,
    # The server ended it, or the statement: a shutdown, a crash, a statement's time limit.
    asyncpg.OperatorInterventionError,
    # The transaction's time limit, or a server that became read-only.
    asyncpg.InvalidTransactionStateError,
    asyncpg.InsufficientResourcesError,
    asyncpg.LockNotAvailableError,
    asyncpg.PostgresSystemError,
    OSError,
)
"""What an outage, or a limit that passed, looks like on a connection that had been fine."""


async def open_connection(connector: Connector, dsn: str, name: str, timeout: float) -> Connection:
    """One connection, within `timeout` seconds.

    Raises:
        Unavailable, SettingsError: see `why_not_connected`.
    """
    try:
        async with asyncio.timeout(timeout):
            return await connector(dsn)
    except Exception as error:
        meaning = why_not_connected(error, name, dsn)
        if meaning is None:
            raise
        # Without the cause: what asyncpg says of a bad DSN may hold a piece of its password.
        raise meaning from None


@asynccontextmanager
async def connect(dsn: str, *, name: str = "postgres", timeout: float = 5.0) -> AsyncIterator[Connection]:
    """One connection for as long as the block runs. `name` is what error messages call the DSN.

    Raises:
        Unavailable: the server cannot be reached within `timeout` seconds.
        SettingsError: the DSN is wrong, or the server refuses the user or has no such database.
    """
    connection = await open_connection(Connector(APPLICATION), dsn, name, timeout)
    try:
        yield connection
    finally:
        await close_connection(connection, timeout)


async def close_connection(connection: Connection, timeout: float) -> bool:
    """Says goodbye, for at most `timeout` seconds, then cuts. Whether it could say goodbye."""
    try:
        async with asyncio.timeout(timeout):
            await connection.close()
    except (*CONNECTION_LOST, asyncio.CancelledError) as error:
        connection.terminate()
        if isinstance(error, asyncio.CancelledError):
            raise
        return False
    return True
