"""One claim of the row store: a transaction that holds the locks on its events until it ends."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any
from uuid import UUID

from quiesce.errors import ClaimLost, Unavailable
from quiesce.lifecycle.crash_points import reach
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Dead, Outcome, Retry
from quiesce.outbox.ports import Settled
from quiesce.postgres.connections import CONNECTION_LOST
from quiesce.postgres.driver import Connection
from quiesce.postgres.event_rows import HEADERS, EventRow, plain
from quiesce.postgres.row_outcomes import RowOutcomes, as_json
from quiesce.postgres.row_positions import array, ranges
from quiesce.postgres.row_statements import RowStatements

_ID, _KEY = 1, 2
"""Places of columns in a row of the claim statement."""

Ended = Callable[["RowClaim", Connection | None], None]
Left = Callable[[Mapping[str, int]], None]


def events_of(rows: Sequence[Any], left: Mapping[str, int]) -> tuple[list[ClaimedEvent], int]:
    """The events that may be published, in the order of `position`, and how many keys are held back at some position.

    `rows` are those of the claim statement. `left` are keys, with the first position, that another claim of the same
    store gave back while the statement ran: the statement took them for events that are being published.
    """
    events: list[Any] = [row for row in rows if row[_ID] is not None]
    held = dict(left)
    attempts: dict[int, int] = {}
    if len(events) < len(rows):
        for position, _, key, *_, failed in (row for row in rows if row[_ID] is None):
            if key is None:
                attempts[position] = failed
            else:
                held[key] = min(position, held.get(key, position))
    if held:
        events = [row for row in events if row[0] < held.get(row[_KEY], row[0] + 1)]
    # UNION ALL promises no order, though it keeps it; sorting what is sorted costs next to nothing.
    events.sort(key=itemgetter(0))
    if attempts or not _are_events(events):
        events = [_event(row, attempts.get(row[0], 0)) for row in events]
    return events, len(held)


def _are_events(rows: Sequence[Any]) -> bool:
    """Whether nothing has to be made of any of these rows, which are of one kind. Asked for all of them at once."""
    return all(isinstance(row, EventRow) for row in rows[:1]) and not [row for row in rows if row[HEADERS] is not None]


def _event(row: Any, attempts: int) -> ClaimedEvent:
    """Most rows are the events. Others have headers, have failed before, or were made of rows of another table."""
    return row if isinstance(row, EventRow) and row[HEADERS] is None and not attempts else plain(row, attempts)


class RowClaim:
    """Events that are locked by a transaction of our own. See the port `Claim`."""

    def __init__(
        self,
        events: list[ClaimedEvent],
        connection: Connection | None,
        statements: RowStatements,
        *,
        timeout: float,
        left: Left,
        ended: Ended,
        timed: bool = False,
    ) -> None:
        """`connection` is None for a claim without events, which has ended already.

        `timed`: it asks how long its first event has waited. `timeout` bounds every exchange with the server, in
        seconds. `left` is called with the keys, and the first position of each, that become free without having been
        published, before they do. `ended` is called once, with the connection if it can be used again.
        """
        self._events = events
        self._connection = connection
        self._statements = statements
        self._timeout = timeout
        self._left = left
        self._ended = ended
        self._timed = timed
        self._written_at: float | None = None
        self._positions = [event.position for event in events]
        self._in_order = self._positions
        self._in_flight: str | None = None

    @property
    def events(self) -> Sequence[ClaimedEvent]:
        return self._events

    @property
    def open(self) -> bool:
        return self._connection is not None

    async def settle(self, outcomes: Mapping[UUID, Outcome]) -> Settled:
        """See the port. Durable when it returns; a cancel, or an error, ends the claim too."""
        connection, self._connection = self._connection, None
        if connection is None:
            if self._events:
                raise ClaimLost("the claim has ended already")
            return Settled()
        settling = RowOutcomes(self._events, self._positions, outcomes)
        if settling.free:
            self._give_up(settling.free)
        if connection.is_closed():
            self._end(connection, None)
            raise ClaimLost("the claim's connection was lost, so its transaction was rolled back")
        usable: Connection | None = None
        try:
            await self._record(connection, settling)
            reach("outbox.marked")
            await self._commit(connection)
            usable = connection
        finally:
            self._end(connection, usable)
        reach("outbox.settled")
        if self._written_at is not None:
            return replace(settling.counted, waited=max(0.0, time.monotonic() - self._written_at))
        return settling.counted

    async def release(self) -> None:
        """See the port. Bounded; a database that is away has let the rows go, or will, by its own limits."""
        connection = self._connection
        if connection is None:
            return
        self._connection = None
        self._give_up(self._events)
        usable: Connection | None = None
        try:
            async with asyncio.timeout(self._timeout):
                await connection.execute("ROLLBACK")
            usable = connection
        except CONNECTION_LOST:
            pass
        finally:
            self._end(connection, usable)

    def abandon(self) -> None:
        """Cuts the connection. The server rolls back when it notices, which is at once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._give_up(self._events)
            self._end(connection, None)

    def distrust(self, first: Mapping[str, int]) -> None:
        """Events of these keys, from these positions on, may not be published in order after all."""
        trusted = frozenset(self._in_order)
        self._in_order = [
            event.position
            for event in self._events
            if event.position in trusted and event.position < first.get(event.aggregate_id, event.position + 1)
        ]
        self._in_flight = None

    @property
    def in_flight(self) -> str:
        """Positions on which a later claim may count, as `ranges`: they are published before it, in order."""
        if self._in_flight is None:
            self._in_flight = ranges(self._in_order)
        return self._in_flight

    @property
    def top(self) -> int:
        """The highest position it has; 0 without events."""
        return self._positions[-1] if self._positions else 0

    async def _record(self, connection: Connection, settling: "RowOutcomes") -> None:
        try:
            async with asyncio.timeout(self._timeout):
                if settling.dispatched:
                    await self._time(connection, settling.dispatched[0])
                    await _expect(connection, self._statements.mark, settling.dispatched)
                if settling.dead and self._statements.bury is not None:
                    await _expect(connection, self._statements.bury, [event.position for event, _ in settling.dead])
                parked: list[tuple[ClaimedEvent, Retry | Dead]] = [*settling.dead, *settling.retry]
                if parked:
                    await connection.execute(self._statements.park, as_json(parked))
        except CONNECTION_LOST as error:
            # COMMIT was not sent, so the server rolls back whatever it got.
            raise ClaimLost(f"the claim was lost before its outcomes were recorded: {_told(error)}") from error

    async def _time(self, connection: Connection, position: int) -> None:
        """When the transaction of this event began, by our monotonic clock: asked of the database, whose clock wrote
        it."""
        if self._timed and self._statements.age is not None:
            now = time.monotonic()
            age = await connection.fetchval(self._statements.age, position)
            self._written_at = None if age is None else now - age

    async def _commit(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await connection.execute("COMMIT")
        except CONNECTION_LOST as error:
            raise Unavailable(
                f"the database went away during a commit, which may have happened or not: {_told(error)}"
            ) from error

    def _give_up(self, events: Sequence[ClaimedEvent]) -> None:
        first: dict[str, int] = {}
        for event in events:
            first.setdefault(event.aggregate_id, event.position)
        if first:
            # Before the server lets them go.
            self._left(first)

    def _end(self, connection: Connection, usable: Connection | None) -> None:
        if usable is None:
            connection.terminate()
        self._ended(self, usable)


async def _expect(connection: Connection, statement: str, positions: list[int]) -> None:
    told = await connection.execute(statement, array(positions))
    changed = int(told.rpartition(" ")[2])
    if changed != len(positions):
        # The rows are locked by this very transaction, so somebody has gone round the lock.
        raise ClaimLost(f"of {len(positions)} events of the claim only {changed} were still there to be marked")


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__
