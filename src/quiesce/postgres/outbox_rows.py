"""The row store: events are claimed by locking their rows, and marked in the same transaction."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import asyncpg

from quiesce.errors import IntakeClosed, SettingsError, Unavailable
from quiesce.lifecycle.crash_points import reach
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.postgres import row_statements as sql
from quiesce.postgres import schema
from quiesce.postgres.claim_limits import begin
from quiesce.postgres.claim_slots import ClaimSlots
from quiesce.postgres.connections import CONNECTION_LOST
from quiesce.postgres.driver import Connection
from quiesce.postgres.dsn import redact_dsn
from quiesce.postgres.outbox_control import take_table
from quiesce.postgres.relay_connections import DIED, RelayConnections
from quiesce.postgres.row_claim import RowClaim
from quiesce.postgres.row_mapping import Mapped, mapped
from quiesce.postgres.row_reader import RowReader
from quiesce.postgres.row_table import OutboxTable
from quiesce.postgres.store_settings import take_numbers, take_seconds

logger = logging.getLogger("quiesce.postgres")

# What the client waits longer than the server, so that the server's limit, which says more, comes first.
_GRACE = 1.0
_TIME_EVERY = 0.25
"""Seconds between two claims that ask how long their first event has waited, at least."""


class OutboxRows:
    """An `OutboxStore` over rows that are locked, published and marked, with connections of its own.

    Any number of stores, in any number of processes, may work on one table: an event is in one claim at a time, and
    the events of a key are handed out in the order of `position` (`row_statements.py` tells how). It counts on
    whoever publishes to publish the claims of one store in the order in which they were claimed, and once
    a claim was released, or settled with an event left over, not to begin with claims that were made before that.

    `claims` is how many claims may be open at once; each has a connection, opened when it is first needed and anew
    when it was lost. `claim_bound` seconds after it began, the server ends a claim's transaction by itself and the rows
    are free (before PostgreSQL 17: when it has been idle for that long). `statement_timeout` bounds each statement,
    `connect_timeout` each connection's opening, in seconds. A claim ends early, after one event at least, where its
    events exceed `max_claim_bytes`, and at 5,000; so a claim of fewer events than asked for does not mean that no
    more wait.

    `dispatched`: what becomes of the rows of dispatched events. "mark" sets `dispatched_at` and leaves them to
    retention. "delete" deletes them: an eighth of what a mark costs the database, but no history, and an event that is
    enqueued again with the id of one that is gone is not refused.

    `table` is for a table that was there before; by default it works on the one that `quiesce outbox schema apply`
    makes.
    """

    def __init__(
        self,
        dsn: str,
        *,
        claims: int = 2,
        name: str = "outbox",
        table: OutboxTable | None = None,
        dispatched: Literal["mark", "delete"] = "mark",
        claim_bound: float = 30.0,
        statement_timeout: float = 10.0,
        connect_timeout: float = 5.0,
        max_claim_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        take_numbers(name, claims=claims, max_claim_bytes=max_claim_bytes)
        take_seconds(
            name, claim_bound=claim_bound, statement_timeout=statement_timeout, connect_timeout=connect_timeout
        )
        if dispatched not in ("mark", "delete"):
            raise SettingsError(f"{name}: got dispatched {dispatched!r}, takes 'mark' or 'delete'")
        self.name = name
        self.part = Part.POOLS
        self._dsn = dsn
        self._claim_bound = claim_bound
        self._statement_timeout = statement_timeout
        self._reader = RowReader(max_claim_bytes)
        self._table = table
        self._mapped: Mapped | None = None
        self._deletes = dispatched == "delete"
        self._statements = self._settling(sql.statements(sql.OWN))
        self._connections = RelayConnections(dsn, name, connect_timeout)
        self._open: list[RowClaim] = []
        self._slots = ClaimSlots(name, claims, claim_bound)
        # One claim statement at a time, so that the order of claims is the order of positions within a key.
        self._turn = asyncio.Lock()
        self._time_at = float("-inf")

    def __repr__(self) -> str:
        return f"<OutboxRows {self.name} {redact_dsn(self._dsn)}>"

    async def open(self) -> "OutboxRows":
        """Makes sure of the server and of the tables.

        Raises:
            Unavailable: the server cannot be reached now.
            SettingsError: the DSN is wrong, the server refuses the user, or it is older than PostgreSQL 14.
            SettingsError: the table is run by log stores, or is another table that cannot be worked on.
            SchemaMissing: the tables are not there. The message names the command that creates them.
        """
        self._connections.reopen()
        connection = await self._connections.take()
        usable: Connection | None = None
        try:
            async with asyncio.timeout(self._statement_timeout):
                if self._table is None:
                    await schema.require(connection)
                    await take_table(connection, "row", self.name)
                else:
                    self._mapped = None
                    await self._look(connection, self._table)
            usable = connection
        except CONNECTION_LOST as error:
            raise Unavailable(f"{self.name}: the database went away: {error}") from error
        finally:
            if usable is None:
                connection.terminate()
            self._connections.give_back(usable)
        return self

    async def close(self, deadline: Deadline) -> Closed:
        """Closes the connections; a claim that is still open is cut off and its events are free. Safe to call twice."""
        cut = len(self._open)
        for claim in list(self._open):
            claim.abandon()
        silent = await self._connections.close(deadline)
        told = [f"{cut} claim(s) still open"] if cut else []
        if silent:
            told.append(f"the server did not answer the goodbye of {silent} connection(s)")
        return Closed(forced=bool(told), detail="; ".join(told))

    async def _look(self, connection: Connection, table: OutboxTable) -> None:
        if self._mapped is None:
            self._mapped = await mapped(connection, table, self.name)
            self._statements = self._settling(self._mapped.statements)

    def _settling(self, statements: sql.RowStatements) -> sql.RowStatements:
        return replace(statements, mark=statements.delete) if self._deletes else statements

    async def claim(self, limit: int) -> RowClaim:
        """See the port. Waits up to `claim_bound` seconds when `claims` claims are open."""
        if limit < 1:
            raise ValueError(f"limit: got {limit}, takes 1 or more")
        await self._slots.take()
        handed_over = False
        try:
            async with self._turn:
                claim = await self._claim(limit)
            handed_over = claim.open
            return claim
        finally:
            if not handed_over:
                self._slots.give_back()

    async def _claim(self, limit: int) -> RowClaim:
        reused = self._connections.has_idle
        try:
            return await self._try_claim(limit)
        except Unavailable as error:
            if not (reused and isinstance(error.__cause__, DIED)):
                raise
        self._connections.drop_idle()
        return await self._try_claim(limit)

    async def _try_claim(self, limit: int) -> RowClaim:
        connection = await self._connections.take()
        self._reader.on(self._connections.opened)
        keep: Connection | None = None
        try:
            async with asyncio.timeout(self._statement_timeout + _GRACE):
                if self._table is not None:
                    await self._look(connection, self._table)
                await connection.execute(
                    begin(
                        connection.get_server_version().major,
                        statement_timeout=self._statement_timeout,
                        claim_bound=self._claim_bound,
                    )
                )
                events = await self._reader.read(connection, limit, self._statements, self._mapped, self._open)
                reach("outbox.claimed")
                await self._reader.survey(connection, self._statements.survey, events)
                if not events:
                    await connection.execute("ROLLBACK")
            if self._connections.closed:
                raise IntakeClosed(f"{self.name} is closed")
            keep = connection
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
            if self._table is not None:
                raise SettingsError(f"{self.name}: {self._table.quoted} was changed meanwhile: {error}") from error
            raise schema.missing(str(error)) from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise SettingsError(f"{self.name}: the relay's user may not claim events: {error}") from error
        except CONNECTION_LOST as error:
            raise Unavailable(f"{self.name}: {_told(error, self._statement_timeout)}") from error
        finally:
            if keep is None:
                connection.terminate()
        if not events:
            self._connections.give_back(connection)
            return RowClaim([], None, self._statements, timeout=0.0, left=self._note_left, ended=self._note_end)
        claim = RowClaim(
            events,
            connection,
            self._statements,
            timeout=self._statement_timeout + _GRACE,
            left=self._note_left,
            ended=self._note_end,
            timed=self._is_time(),
        )
        self._open.append(claim)
        return claim

    def _is_time(self) -> bool:
        """Whether a claim asks how long its first event has waited, which is an exchange more."""
        now = time.monotonic()
        if now < self._time_at:
            return False
        self._time_at = now + _TIME_EVERY
        return True

    def _note_left(self, first: Mapping[str, int]) -> None:
        self._reader.left(first, self._open)

    def _note_end(self, claim: RowClaim, usable: Connection | None) -> None:
        self._open.remove(claim)
        self._slots.give_back()
        self._connections.give_back(usable)


def _told(error: BaseException, limit: float) -> str:
    if isinstance(error, TimeoutError):
        return f"the database did not answer a claim within {limit} s"
    return f"a claim failed: {str(error) or type(error).__name__}"
