"""An outbox in memory: the table, and stores that work on it as those of several relays would.

It keeps the promises of the port, and passes its contract suite. It has no thread and no real time of its own (it
reads the loop's clock), so thousands of runs fit into a minute.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from quiesce.errors import ClaimLost, IntakeClosed
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.outbox.event import ClaimedEvent, OutboxEvent, PlainEvent
from quiesce.outbox.outcome import Dead, Dispatched, Outcome, Retry
from quiesce.outbox.ports import Settled


@dataclass(slots=True)
class MemoryRow:
    """One event of the table. `retry_at` is an instant of the loop's clock; `reason` is the last refusal's."""

    event: OutboxEvent
    position: int
    payload: bytes | None
    committed: bool = False
    dispatched: bool = False
    dead: bool = False
    attempts: int = 0
    retry_at: float | None = None
    reason: str = ""
    claim: "MemoryClaim | None" = None
    in_order: bool = True
    """Whether what comes before it in its key is published, or being published, before it."""

    @property
    def waiting(self) -> bool:
        return self.committed and not self.dispatched and not self.dead

    def claimed(self) -> ClaimedEvent:
        event = self.event
        return PlainEvent(
            position=self.position,
            id=event.id,
            aggregate_id=event.aggregate_id,
            topic=event.topic,
            type=event.type,
            payload=self.payload,
            headers=event.stored_headers(),
            attempts=self.attempts,
        )


class MemoryTable:
    """The events of one outbox, in the order of `position`."""

    def __init__(self) -> None:
        self.rows: list[MemoryRow] = []

    def add(self, event: OutboxEvent) -> Callable[[], None]:
        """Writes an event, which takes its position, and returns what commits it."""
        row = MemoryRow(event, len(self.rows) + 1, event.check())
        self.rows.append(row)

        def commit() -> None:
            row.committed = True

        return commit

    def enqueue(self, *events: OutboxEvent) -> None:
        """Writes and commits the events."""
        for commit in [self.add(event) for event in events]:
            commit()

    def row(self, event_id: UUID) -> MemoryRow:
        return next(row for row in self.rows if row.event.id == event_id)


class MemoryClaim:
    """See the port `Claim`."""

    def __init__(self, store: "MemoryOutbox", rows: Sequence[MemoryRow]) -> None:
        self._store = store
        self.rows = rows
        self._open = True
        self.events: Sequence[ClaimedEvent] = [row.claimed() for row in rows]
        for row in rows:
            row.claim = self
            row.in_order = True

    def belongs_to(self, store: "MemoryOutbox") -> bool:
        return self._store is store

    async def settle(self, outcomes: Mapping[UUID, Outcome]) -> Settled:
        """See the port."""
        self._end([event_id for event_id, outcome in outcomes.items() if not isinstance(outcome, Retry)])
        counted = {Dispatched: 0, Retry: 0, Dead: 0}
        for row in self.rows:
            outcome = outcomes.get(row.event.id)
            if outcome is None:
                continue
            counted[type(outcome)] += 1
            match outcome:
                case Dispatched():
                    row.dispatched = True
                    row.retry_at = None
                case Retry():
                    row.attempts += outcome.counts
                    row.retry_at = self._store.now() + max(0.0, outcome.wait)
                    row.reason = outcome.reason
                case Dead():
                    row.attempts += 1
                    row.dead = True
                    row.retry_at = None
                    row.reason = outcome.reason
        released = len(self.rows) - sum(counted.values())
        return Settled(counted[Dispatched], counted[Retry], counted[Dead], released)

    async def release(self) -> None:
        """See the port."""
        if self._open:
            self._end()

    def lose(self) -> None:
        """What a lost connection does: the events are free, and whoever settles is told so."""
        if self._open:
            self._end()

    def _end(self, settled: Collection[UUID] = ()) -> None:
        if not self._open:
            raise ClaimLost("the claim has ended already")
        self._open = False
        self._store.claims.discard(self)
        for row in self.rows:
            row.claim = None
        for row in self.rows:
            if row.event.id not in settled:
                self._store.given_back(row)


class MemoryOutbox:
    """An `OutboxStore` on a `MemoryTable`; several of them work on one table as several relays would."""

    def __init__(self, table: MemoryTable, name: str = "outbox") -> None:
        self.name = name
        self.part = Part.POOLS
        self.claims: set[MemoryClaim] = set()
        self._table = table
        self._closed = False

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def open(self) -> "MemoryOutbox":
        """See the port."""
        self._closed = False
        return self

    async def close(self, deadline: Deadline) -> Closed:
        """See the port."""
        self._closed = True
        lost = list(self.claims)
        for claim in lost:
            claim.lose()
        return Closed(forced=bool(lost), detail=f"{len(lost)} claim(s) still open" if lost else "")

    async def claim(self, limit: int) -> MemoryClaim:
        """See the port. Takes no time: the events are claimed when it is first awaited."""
        if self._closed:
            raise IntakeClosed(f"{self.name} is closed")
        claim = MemoryClaim(self, self._free(limit))
        if claim.events:
            self.claims.add(claim)
        return claim

    def given_back(self, row: MemoryRow) -> None:
        """Its successors in other claims of ours can no longer be counted on to be published after it."""
        for claim in self.claims:
            for later in claim.rows:
                if later.event.aggregate_id == row.event.aggregate_id and later.position > row.position:
                    later.in_order = False

    def _free(self, limit: int) -> list[MemoryRow]:
        now = self.now()
        waiting = [row for row in self._table.rows if row.waiting]
        held = {row.event.aggregate_id for row in waiting if row.retry_at is not None and row.retry_at > now}
        free: list[MemoryRow] = []
        for row in waiting:
            if len(free) == limit:
                break
            key = row.event.aggregate_id
            if key in held:
                continue
            if row.claim is None:
                free.append(row)
            elif not (row.claim.belongs_to(self) and row.in_order):
                held.add(key)
        return free
