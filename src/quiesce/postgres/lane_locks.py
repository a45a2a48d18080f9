"""The locks of one member: a connection that sits idle in a transaction."""

import asyncio
import random
from collections.abc import Callable, Iterable

import asyncpg

from quiesce.errors import QuiesceError, SettingsError, Unavailable
from quiesce.postgres import lane_statements as sql
from quiesce.postgres import schema
from quiesce.postgres.connections import Connector, close_connection, open_connection
from quiesce.postgres.driver import Connection

# What the client waits longer than the server, so that the server's limit, which says more, comes first. Seconds.
_GRACE = 1.0
_BADGES_TRIED = 3


class LaneLocks:
    """What one connection has locked, for as long as it lives. After any error it is cut, and all locks are free.

    Its statements must not overlap. Cancelling one cuts the connection, since nobody would know what it has locked.
    """

    def __init__(self, connection: Connection, name: str, statement_timeout: float, gone: Callable[[], None]) -> None:
        self._connection = connection
        self._name = name
        self._bound = statement_timeout + _GRACE
        self._lanes: list[int] = []
        # Whether the innermost savepoint has no lock yet.
        self._savepoint = False
        self.badge = 0
        """The number by which others know this session; see `lane_statements`."""
        connection.add_termination_listener(lambda _: gone())

    @classmethod
    async def open(
        cls,
        connector: Connector,
        dsn: str,
        name: str,
        *,
        connect_timeout: float,
        statement_timeout: float,
        gone: Callable[[], None],
    ) -> "LaneLocks":
        """Connects and joins the members. `gone` is called when the connection has ended, whoever ended it.

        Raises:
            Unavailable: the server cannot be reached now.
            SettingsError: the DSN is wrong, or leads through a pooler that keeps no transaction together.
            SchemaMissing: there is no table `outbox_lane`.
        """
        connection = await open_connection(connector, dsn, name, connect_timeout)
        locks = cls(connection, name, statement_timeout, gone)
        try:
            await locks._join(statement_timeout)
        except BaseException:
            locks.cut()
            raise
        return locks

    @property
    def alive(self) -> bool:
        return not self._connection.is_closed()

    @property
    def lanes(self) -> tuple[int, ...]:
        """The lanes that are locked, first the one that was locked first."""
        return tuple(self._lanes)

    async def take(self, lanes: Iterable[int]) -> int | None:
        """Locks the first of these lanes that is free and returns it; None when none is."""
        before = "" if self._savepoint else "SAVEPOINT lane; "
        # A session gets what it has as often as it asks.
        rows = await self._run(before + sql.take(lane for lane in lanes if lane not in self._lanes))
        self._savepoint = rows == 0
        if rows == 0:
            return None
        self._lanes.append(rows - 1)
        return rows - 1

    async def drop(self, count: int) -> None:
        """Unlocks the lanes that were locked last. All at once, so nobody sees half of it."""
        if count == 0:
            return
        steps = ["RELEASE SAVEPOINT lane"] if self._savepoint else []
        steps += ["ROLLBACK TO SAVEPOINT lane", "RELEASE SAVEPOINT lane"] * count
        # The last one stays for the next lock.
        await self._run("; ".join(steps[:-1]))
        self._savepoint = True
        del self._lanes[-count:]

    async def share(self, alive_within: float) -> int:
        """How many lanes are due to this member now."""
        return await self._run(sql.share(alive_within))

    async def silence(self, most: float) -> float:
        """For how many seconds the most silent owner of a lane has given no sign of life; `most` at most, or little
        more."""
        return sql.silent_for(await self._run(sql.silence(most)))

    def cut(self) -> None:
        """Ends the connection at once. The server frees the locks when it notices, which is at once too."""
        self._connection.terminate()

    async def leave(self, timeout: float) -> bool:
        """Says goodbye, for at most `timeout` seconds, then cuts. Whether it could say goodbye."""
        if not self.alive:
            return True
        return await close_connection(self._connection, timeout)

    async def _join(self, statement_timeout: float) -> None:
        major = self._connection.get_server_version().major
        for _ in range(_BADGES_TRIED):
            self.badge = random.randint(sql.FIRST_BADGE, sql.LAST_BADGE)  # noqa: S311 - it guards nothing
            begin = sql.begin(
                major,
                badge=self.badge,
                statement_timeout=statement_timeout,
                shown_as=f"quiesce: lanes of {self._name}",
            )
            if await self._run(begin) == 1:
                break
            await self._run("ROLLBACK")
        if not self._connection.is_in_transaction() or await self._run(sql.joined(self.badge)) != 1:
            raise self._scattered("it gives the statements of one transaction to several sessions")

    async def _run(self, statement: str) -> int:
        """Runs it by the simple protocol and returns how many rows its last part had."""
        try:
            async with asyncio.timeout(self._bound):
                tag = await self._connection.execute(statement)
        except BaseException as error:
            self.cut()
            meaning = self._meaning(error)
            if meaning is None:
                raise
            raise meaning from error
        word, _, rows = tag.partition(" ")
        return int(rows) if word == "SELECT" else 0

    def _meaning(self, error: BaseException) -> QuiesceError | None:
        told = " ".join(str(error).split()) or type(error).__name__
        match error:
            case asyncpg.UndefinedTableError():
                return schema.missing(told)
            case asyncpg.PostgresError() if "statement pooling mode" in told:
                return self._scattered(told)
            case TimeoutError():
                return Unavailable(f"{self._name}: the database did not answer about its lanes within {self._bound} s")
            case asyncpg.InsufficientPrivilegeError():
                return SettingsError(f"{self._name}: the relay's user may not ask for lanes: {told}")
            case asyncpg.PostgresError() | OSError() | asyncpg.InterfaceError() | asyncpg.InternalClientError():
                return Unavailable(f"{self._name}: the connection that holds its lanes is lost: {told}")
        return None

    def _scattered(self, told: str) -> SettingsError:
        return SettingsError(
            f"{self._name}: a pooler before the database keeps no transaction together ({told}). Takes a pooler in "
            "transaction or session mode, or none"
        )
