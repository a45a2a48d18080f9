"""The log store: events are never updated; a cursor a lane says how far they were read."""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence

from quiesce.errors import IntakeClosed, Unavailable
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.outbox.ports import Takeover
from quiesce.postgres.claim_slots import ClaimSlots
from quiesce.postgres.connections import CONNECTION_LOST
from quiesce.postgres.driver import Connection
from quiesce.postgres.dsn import redact_dsn
from quiesce.postgres.lanes import Lanes
from quiesce.postgres.log_claim import LogClaim
from quiesce.postgres.log_claiming import LogClaiming
from quiesce.postgres.log_connections import LogConnections
from quiesce.postgres.log_intake import LogIntake
from quiesce.postgres.log_lane import LaneLog
from quiesce.postgres.log_owned import DeadPolicies, DeadPolicy, OwnedLogs
from quiesce.postgres.log_tending import LogTending
from quiesce.postgres.log_watch import LogWatch
from quiesce.postgres.log_writer import LogWriter
from quiesce.postgres.outbox_control import take_table
from quiesce.postgres.store_settings import take_numbers, take_seconds

_PATIENCE = 2.0
"""Seconds that a claim waits to be recorded for those before it in its lanes."""

_TAKEOVERS_KEPT = 100
"""Where nobody asks for them."""


class OutboxLog:
    """An `OutboxStore` over a log that is only appended to, with connections of its own: two or three, and one for its
    lanes.

    Any number of stores, in any number of processes, work on one table: they share its 16 lanes, and the events of a
    lane are handed out by its owner only, those of a key in the order of `position`. The store counts on whoever
    publishes to publish its claims in the order in which they were claimed, and once a claim was released, or
    settled with an event left over, not to begin with claims that were made before that.

    An event that must be retried holds its key back and no other. A dead letter lets its key go on, or holds it back
    until an operator deals with it (`dead="hold_key"`, or a mapping from topics to one of the two). Above `max_parked`
    events set aside in one lane nothing more is read from it.

    `claims` is how many claims may be open at once. An owner that is frozen is replaced after `takeover_after` without
    a sign of life. `statement_timeout` bounds each statement, `connect_timeout` each connection's opening; all in
    seconds. A claim ends early, after one event at least, where its events exceed `max_claim_bytes`, and at 5,000.
    """

    poll_interval = 0.002
    """Seconds between two claims while events keep coming."""

    def __init__(
        self,
        dsn: str,
        *,
        claims: int = 2,
        name: str = "outbox",
        statement_timeout: float = 10.0,
        connect_timeout: float = 5.0,
        max_claim_bytes: int = 16 * 1024 * 1024,
        takeover_after: float = 30.0,
        dead: DeadPolicy | Mapping[str, DeadPolicy] = "continue",
        max_parked: int = 10_000,
    ) -> None:
        take_numbers(name, claims=claims, max_claim_bytes=max_claim_bytes, max_parked=max_parked)
        take_seconds(
            name, statement_timeout=statement_timeout, connect_timeout=connect_timeout, takeover_after=takeover_after
        )
        self.name = name
        self.part = Part.POOLS
        self._dsn = dsn
        self._statement_timeout = statement_timeout
        self._connect_timeout = connect_timeout
        self._takeover_after = takeover_after
        self._connections = LogConnections(
            dsn, name, connect_timeout=connect_timeout, statement_timeout=statement_timeout
        )
        policies = DeadPolicies.of(name, dead)
        self.dead_holds_key = policies.holds
        """Whether a dead letter of a topic holds its key back. The relay asks."""
        self._owned = OwnedLogs(name, self._connections, policies, max_parked, lambda: self._lanes.held)
        self._takeovers: deque[Takeover] = deque(maxlen=_TAKEOVERS_KEPT)
        self._lanes = self._new_lanes()
        self._writer = LogWriter(
            name,
            self._connections,
            bound=statement_timeout,
            patience=min(_PATIENCE, statement_timeout / 2),
            lost=self._note_lost,
        )
        self._watch = LogWatch(name, self._connections, statement_timeout)
        self._tending = LogTending(
            name, self._connections, self._owned, self._writer, lambda: self._lanes, statement_timeout
        )
        self._claiming = LogClaiming(
            ClaimSlots(name, claims, statement_timeout),
            self._tending,
            LogIntake(name, self._connections, self._owned, max_claim_bytes, self._refuse_closed),
            self._writer,
            self._watch,
            lambda: self._lanes,
        )
        self._closing = False

    def __repr__(self) -> str:
        return f"<OutboxLog {self.name} {redact_dsn(self._dsn)}>"

    def _new_lanes(self) -> Lanes:
        return Lanes(
            self._dsn,
            self.name,
            connect_timeout=self._connect_timeout,
            statement_timeout=self._statement_timeout,
            takeover_after=self._takeover_after,
            on_lost=lambda _: self._tending.lanes_lost(),
            busy=self._owned.busy,
            on_change=self.end_watch,
            on_takeover=self._takeovers.append,
        )

    async def open(self) -> "OutboxLog":
        """Makes sure of the server, of the tables, and that the table is run by this kind of store.

        Raises:
            Unavailable: the server cannot be reached now.
            SettingsError: the DSN is wrong, the server refuses the user, it is older than PostgreSQL 14, or the table
                is run by row stores.
            SchemaMissing: the tables are not there. The message names the command that creates them.
            DatabaseReplaced: it is not the database that the cursors were written in.
        """
        if self._closing:
            self._closing = False
            self._connections.reopen()
            self._lanes = self._new_lanes()
        connection = await self._connections.take()
        usable: Connection | None = None
        try:
            async with asyncio.timeout(self._statement_timeout):
                # No block: see `LogConnections.take`.
                await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                await take_table(connection, "log", self.name)
                await connection.execute("COMMIT")
            usable = connection
        except CONNECTION_LOST as error:
            raise Unavailable(f"{self.name}: the database went away: {error}") from error
        finally:
            if usable is None:
                connection.terminate()
            self._connections.give_back(usable)
        return self

    async def close(self, deadline: Deadline) -> Closed:
        """Writes what was settled, lets the lanes go, closes the connections. Safe to call twice.

        A claim that is still open is cut off; its events are free.
        """
        self._closing = True
        self._watch.wake()
        cut = self._claiming.cut_off()
        written = await self._writer.close(0.7 * deadline.remaining(time.monotonic()))
        silent = await self._lanes.close(deadline)
        silent += await self._connections.close(deadline)
        told = [f"{cut} claim(s) still open"] if cut else []
        if not written:
            told.append("the last outcomes could not be recorded")
        if silent:
            told.append(f"the server did not answer the goodbye of {silent} connection(s)")
        return Closed(forced=bool(told), detail="; ".join(told))

    async def let_go(self) -> None:
        """See the port: the lanes are free, for others to take. The next claim would own some anew."""
        await self._writer.close(self._statement_timeout)
        lanes, self._lanes = self._lanes, self._new_lanes()
        await lanes.close(Deadline(time.monotonic() + self._statement_timeout))

    def takeovers(self) -> Sequence[Takeover]:
        """See the port."""
        if not self._takeovers:
            return ()
        told = list(self._takeovers)
        self._takeovers.clear()
        return told

    @property
    def watches(self) -> bool:
        """See the port. A pooler that gives statements to sessions as it likes would lend one for good."""
        return not self._connections.pooled

    @property
    def why_silent(self) -> str:
        """See the port."""
        if not self._connections.pooled:
            return ""
        return (
            "perhaps for want of a server connection at the pooler in between: each relay holds one for good and needs "
            "more for moments, so default_pool_size must be larger than the number of relays"
        )

    async def watch(self, seconds: float, every: float, pause: float = 0.0) -> bool:
        """See the port. The server looks, and the next claim takes what it has found.

        Raises:
            As `claim`.
        """
        self._refuse_closed()
        now = time.monotonic()
        if self._claiming.due(now) or self._tending.due(now):
            # A claim that looks for itself, better now than with events in hand.
            await self._watch.wait([], pause, every)
            return True
        logs = [] if self._tending.paused else self._owned.readable(self._lanes.wants_rid_of)
        return await self._watch.wait(logs, seconds, every, pause)

    def end_watch(self) -> None:
        """See the port."""
        self._watch.wake()

    async def claim(self, limit: int) -> LogClaim:
        """See the port. Waits up to `statement_timeout` seconds when `claims` claims are open.

        Raises:
            Unavailable: the database cannot be reached now.
            SchemaMissing: the tables are not there.
            DatabaseReplaced: it is not the database that the cursors were written in.
            IntakeClosed: the store is closed.
        """
        if limit < 1:
            raise ValueError(f"limit: got {limit}, takes 1 or more")
        self._refuse_closed()
        return await self._claiming.claim(limit)

    def claim_at_once(self, limit: int) -> LogClaim | None:
        """See the port. Where lanes come and go, or anything is set aside, a claim sees to it."""
        return None if self._closing else self._claiming.claim_at_once(limit)

    def _refuse_closed(self) -> None:
        if self._closing:
            raise IntakeClosed(f"{self.name} is closed")

    def _note_lost(self, logs: Sequence[LaneLog]) -> None:
        self._tending.give_up(logs)
        self._watch.wake()
