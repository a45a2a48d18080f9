"""An outbox and a broker in memory whose every delay and fault is written down beforehand.

They run on virtual time and start no task. The broker is one log, so that order can be judged; it acks in
order, as an idempotent producer does, and refuses single events where the script says so.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID, uuid5

from quiesce.errors import ClaimLost, Unavailable
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed, Stop
from quiesce.outbox.event import ClaimedEvent, PlainEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Dispatched, Outcome, Retry
from quiesce.outbox.ports import Settled

_SPACE = UUID("00000000-0000-0000-0000-00000000000a")


def event(position: int, key: str = "k", attempts: int = 0) -> ClaimedEvent:
    return PlainEvent(
        position=position,
        id=uuid5(_SPACE, str(position)),
        aggregate_id=key,
        topic="orders",
        type="Placed",
        payload=b"{}",
        headers={},
        attempts=attempts,
    )


@dataclass
class Away:
    """Stretches of virtual time in which somebody does not answer: `(from, until)`."""

    stretches: Sequence[tuple[float, float]] = ()

    def until(self, now: float) -> float | None:
        """The end of the stretch that `now` lies in."""
        return next((end for begin, end in self.stretches if begin <= now < end), None)


@dataclass
class Row:
    event: ClaimedEvent
    visible_at: float = 0.0
    claimed: bool = False
    outcome: Outcome | None = None
    retry_at: float | None = None


class MemoryClaim:
    def __init__(self, store: "MemoryStore", rows: list[Row]) -> None:
        self._store = store
        self._rows = rows
        self._over = False
        self.events = [row.event for row in rows]

    async def settle(self, outcomes: Mapping[UUID, Outcome]) -> Settled:
        self._end()
        recorded = False
        try:
            await self._store.answer("settle")
            if self._store.lose_claims and self._store.random.random() < self._store.lose_claims:
                raise ClaimLost("the transaction had ended")
            recorded = True
        finally:
            # However it comes back, the claim is over: its transaction has ended.
            for row in self._rows:
                row.claimed = False
        assert recorded
        counts = Counter[str]()
        for row in self._rows:
            outcome = outcomes.get(row.event.id)
            match outcome:
                case None:
                    counts["released"] += 1
                case Retry():
                    counts["retried"] += 1
                    row.retry_at = self._store.now() + outcome.wait
                    row.event = event(row.event.position, row.event.aggregate_id, row.event.attempts + 1)
                case Dead():
                    counts["dead"] += 1
                    row.outcome = outcome
                case Dispatched():
                    counts["dispatched"] += 1
                    row.outcome = outcome
        return Settled(**counts)

    async def release(self) -> None:
        self._end()
        for row in self._rows:
            row.claimed = False
        # Free at once: what follows is only the database's answer.
        try:
            await self._store.answer("release")
        except Unavailable:
            return

    def _end(self) -> None:
        assert not self._over, "a claim is settled or released once"
        self._over = True
        self._store.open_claims -= 1


@dataclass
class MemoryStore:
    """`latency` (seconds) and `away` shape each answer. While away it refuses, or hangs if `hangs`."""

    random: Random = field(default_factory=lambda: Random(0))
    latency: float = 0.002
    away: Away = field(default_factory=Away)
    hangs: bool = False
    lose_claims: float = 0.0
    name: str = "outbox"
    part: Part = Part.POOLS

    def __post_init__(self) -> None:
        self.rows: list[Row] = []
        self.stop: Stop | None = None
        self.open_claims = 0
        self.begun_after_stop = 0
        self.most_open_claims = 0
        self.most_in_hand = 0
        self.claims: list[tuple[float, int]] = []
        self.faults: dict[str, list[Exception]] = {}
        self.cancels_itself = 0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def add(self, *events: ClaimedEvent, at: float = 0.0) -> None:
        self.rows.extend(Row(event, at) for event in events)

    async def answer(self, what: str) -> None:
        await asyncio.sleep(self.latency * self.random.random())
        if self.faults.get(what):
            raise self.faults[what].pop(0)
        if (until := self.away.until(self.now())) is not None:
            if self.hangs:
                await asyncio.sleep(until - self.now())
            else:
                raise Unavailable("connection refused")

    async def open(self) -> "MemoryStore":
        return self

    async def close(self, deadline: Deadline) -> Closed:
        return Closed()

    async def claim(self, limit: int) -> MemoryClaim:
        self.begins()
        assert limit >= 1
        self.claims.append((self.now(), limit))
        if self.cancels_itself:
            self.cancels_itself -= 1
            gone = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone
        await self.answer("claim")
        return MemoryClaim(self, self._hand_out(limit))

    def begins(self) -> None:
        """Notes a claim that a stop should have kept from being made: what is raised here the relay would survive."""
        self.begun_after_stop += self.stop is not None and self.stop.requested

    def _hand_out(self, limit: int) -> list[Row]:
        rows = self._free(limit)
        for row in rows:
            row.claimed = True
        self.open_claims += 1
        self.most_open_claims = max(self.most_open_claims, self.open_claims)
        self.most_in_hand = max(self.most_in_hand, sum(row.claimed for row in self.rows))
        return rows

    def _free(self, limit: int) -> list[Row]:
        """In order of position; a key that waits for a retry holds its later events."""
        free: list[Row] = []
        held: set[str] = set()
        for row in self.rows:
            if row.outcome is not None or row.visible_at > self.now() or len(free) == limit:
                continue
            key = row.event.aggregate_id
            if row.retry_at is not None and row.retry_at > self.now():
                held.add(key)
            elif not row.claimed and key not in held:
                free.append(row)
        return free

    # What the tests ask.

    def claimed(self) -> list[UUID]:
        return [row.event.id for row in self.rows if row.claimed]

    def waiting(self) -> list[ClaimedEvent]:
        return [row.event for row in self.rows if row.outcome is None]

    def dispatched(self) -> set[UUID]:
        return {row.event.id for row in self.rows if isinstance(row.outcome, Dispatched)}

    def dead(self) -> set[UUID]:
        return {row.event.id for row in self.rows if isinstance(row.outcome, Dead)}


@dataclass
class Call:
    events: Sequence[ClaimedEvent]
    done: "asyncio.Future[None]"
    outcomes: dict[UUID, Outcome] = field(default_factory=dict)


@dataclass
class MemoryBroker:
    """A publisher and the log behind it.

    `refuse` maps an event's id to the outcomes of its first tries. While `away` nothing is answered; what
    the network had already taken when the producer is discarded (`slips` is the chance for each) still
    arrives, in order and without an answer.
    """

    random: Random = field(default_factory=lambda: Random(0))
    latency: float = 0.003
    away: Away = field(default_factory=Away)
    refuse: dict[UUID, list[Outcome]] = field(default_factory=dict)
    slips: float = 0.5
    discard_hangs: bool = False
    name: str = "broker"
    part: Part = Part.PRODUCERS

    def __post_init__(self) -> None:
        self.log: list[ClaimedEvent] = []
        self.acked: set[UUID] = set()
        self.handed_over: list[ClaimedEvent] = []
        self.discards = 0
        self.faults: list[Exception] = []
        self.on_publish: Any = None
        self._queue: list[tuple[Call, ClaimedEvent]] = []
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def open(self) -> "MemoryBroker":
        return self

    async def close(self, deadline: Deadline) -> Closed:
        return Closed()

    async def publish(self, events: Sequence[ClaimedEvent]) -> Mapping[UUID, Outcome]:
        assert events, "nothing to publish"
        if self.on_publish is not None:
            self.on_publish(events)
        if self.faults:
            raise self.faults.pop(0)
        call = Call(events, asyncio.get_running_loop().create_future())
        self.handed_over.extend(events)
        self._queue.extend((call, event) for event in events)
        self._work()
        await call.done
        return call.outcomes

    def _work(self) -> None:
        """Arms the answer to the first message of the queue."""
        if self._queue and self._timer is None:
            loop = asyncio.get_running_loop()
            now = loop.time()
            at = self.away.until(now) or now
            # Some messages share a round trip: their answers come in one turn of the loop.
            wait = self.random.choice((0.0, 0.0, self.latency * self.random.random()))
            self._timer = loop.call_at(at + wait, self._answer)

    def _answer(self) -> None:
        self._timer = None
        if self.away.until(self.now()) is not None:
            self._work()
            return
        call, event = self._queue.pop(0)
        refusals = self.refuse.get(event.id)
        if refusals:
            call.outcomes[event.id] = refusals.pop(0)
        else:
            self.log.append(event)
            self.acked.add(event.id)
            call.outcomes[event.id] = DISPATCHED
        if len(call.outcomes) == len(call.events) and not call.done.done():
            call.done.set_result(None)
        self._work()

    async def discard(self, deadline: Deadline) -> int:
        self.discards += 1
        if self.discard_hangs:
            await asyncio.sleep(1e6)
        given_up = len(self._queue)
        calls = []
        slipping = True
        for call, event in self._queue:
            slipping = slipping and self.random.random() < self.slips
            if slipping and not self.refuse.get(event.id):
                self.log.append(event)
            if call not in calls:
                calls.append(call)
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in calls:
            if not call.done.done():
                call.done.set_result(None)
        await asyncio.sleep(0.01)
        return given_up

    async def reachable(self, deadline: Deadline) -> bool:
        await asyncio.sleep(0.001)
        until = self.away.until(self.now())
        if until is not None:
            await asyncio.sleep(min(deadline.remaining(self.now()), until - self.now()))
            return False
        return True


def first_occurrences(log: Sequence[ClaimedEvent]) -> list[ClaimedEvent]:
    seen: set[UUID] = set()
    firsts = []
    for entry in log:
        if entry.id not in seen:
            seen.add(entry.id)
            firsts.append(entry)
    return firsts


def out_of_order(log: Sequence[ClaimedEvent]) -> list[ClaimedEvent]:
    """Events whose first occurrence comes behind a later one of their key."""
    highest: dict[str, int] = {}
    wrong = []
    for entry in first_occurrences(log):
        if entry.position < highest.get(entry.aggregate_id, -1):
            wrong.append(entry)
        highest[entry.aggregate_id] = max(entry.position, highest.get(entry.aggregate_id, -1))
    return wrong


def doubled(log: Sequence[ClaimedEvent]) -> int:
    return len(log) - len({entry.id for entry in log})
