"""One lane in its owner's memory: the cursor that reads ahead, the claims between it and the recorded one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol
from uuid import UUID

from quiesce.outbox.cursor import Cursor, Snapshot
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Dead, Dispatched, Outcome, Retry
from quiesce.postgres.log_parked import GIVEN_BACK, HELD, Parked, ParkedKeys, Policy

_LONGEST_WAIT = 365 * 24 * 3600.0

_position = attrgetter("position")


class Holder(Protocol):
    """What a lane asks of the claim that a part belongs to."""

    outcomes: Mapping[UUID, Outcome] | None
    """None until it is settled."""
    all_dispatched: bool
    parked: "list[tuple[LaneLog, Parked, ClaimedEvent]]"
    """Events set aside that it has in hand."""


@dataclass(slots=True, eq=False)
class Part:
    """What one claim has of one lane: a page, or the beginning of one. Between `before` and `after` of the cursor."""

    log: "LaneLog"
    claim: Holder
    before: Cursor
    after: Cursor
    until: Snapshot
    events: list[ClaimedEvent]
    """Those handed out."""
    withheld: list[ClaimedEvent]
    """Those whose key waits: to be set aside in their turn."""
    released: bool = False
    planned: bool = False


@dataclass(slots=True, eq=False)
class LaneLog:
    """Times are monotonic seconds.

    Parts end in the order in which they were read, since the recorded cursor can only move over all that is
    behind it. One that is given back before a later one has ended is remembered (`released`), and its events are set
    aside when the cursor moves over them; meanwhile nothing more is read from the lane, so that nothing passes them.
    """

    lane: int
    epoch: int
    recorded: Cursor
    reading: Cursor
    dispatched: int
    parked: ParkedKeys
    holds: Policy
    version: int = 0
    """Of its row: see `lane_rows`."""
    moves: int = 0
    """How often it was recorded."""
    chain: list[Part] = field(default_factory=list)
    in_hand: int = 0
    """Events set aside that claims have in hand."""
    writes: int = 0
    """Under way: what is to be recorded has left the chain, and must not be read again."""
    withheld: Counter[str] = field(default_factory=Counter)
    lost: str = ""
    """Why nothing can be recorded in it any more."""
    _ended_at: Cursor | None = None

    @property
    def read_out(self) -> bool:
        """Whether nothing is left of what was visible when it was last read: what it may have is in no snapshot yet."""
        return self.reading is self._ended_at

    @property
    def busy(self) -> bool:
        return bool(self.chain) or self.in_hand > 0 or self.writes > 0

    @property
    def blocked(self) -> bool:
        """Whether something was given back that nothing may pass."""
        return any(part.released for part in self.chain)

    def lose(self, why: str) -> None:
        """Another owner has it, or nobody knows what is recorded: whatever was read is to be read anew."""
        self.lost = self.lost or why
        self._ended_at = None
        self.chain.clear()
        self.withheld.clear()

    def append(
        self, claim: Holder, events: list[ClaimedEvent], until: Snapshot, *, complete: bool, room: int
    ) -> Part | None:
        """Takes a page into a claim, at most `room` events of it; None if it took none."""
        if not events:
            self.reading = self.reading.after(0, until, complete=complete)
            self._ended_at = self.reading if complete else None
            return None
        handed, withheld = self._split(events, room)
        taken = len(handed) + len(withheld)
        if not taken:
            return None
        before = self.reading
        complete = complete and taken == len(events)
        self.reading = before.after(events[taken - 1].position, until, complete=complete)
        self._ended_at = self.reading if complete else None
        part = Part(self, claim, before, self.reading, until, handed, withheld)
        self.chain.append(part)
        return part

    def _split(self, events: list[ClaimedEvent], room: int) -> tuple[list[ClaimedEvent], list[ClaimedEvent]]:
        if not self.parked and not self.withheld:
            return events[:room], []
        handed: list[ClaimedEvent] = []
        withheld: list[ClaimedEvent] = []
        for event in events:
            if self.withheld[event.aggregate_id] or self.parked.holds(event.aggregate_id, event.position):
                self.withheld[event.aggregate_id] += 1
                withheld.append(event)
            elif len(handed) == room:
                break
            else:
                handed.append(event)
        return handed, withheld

    def release(self, part: Part) -> None:
        """Its events are given back: read again if nothing was read behind them, else set aside later."""
        if self.lost or part.planned:
            return
        part.released = True
        while self.chain and self.chain[-1].released:
            last = self.chain.pop()
            self._unwithhold(last.withheld)
            last.planned = True
            self.reading = last.before

    def plan(self, part: Part, now: float) -> None:
        """Moves the cursor to be recorded behind this part, with all that has to be set aside on the way."""
        outcomes = part.claim.outcomes or {}
        if part.events and not part.claim.all_dispatched and not any(event.id in outcomes for event in part.events):
            self.release(part)
            return
        while not part.planned:
            first = self.chain.pop(0)
            first.planned = True
            if not first.released and first.claim.outcomes is not None:
                self._settle(first, first.claim.outcomes, now)
            else:
                self._pass(first, now)
            self._unwithhold(first.withheld)

    def _settle(self, part: Part, outcomes: Mapping[UUID, Outcome], now: float) -> None:
        events = part.events
        if not part.withheld and part.claim.all_dispatched:
            self.dispatched += len(events)
            self.recorded = part.after
            return
        every = sorted([*events, *part.withheld], key=_position) if part.withheld else events
        keep = len(every)
        if not self.chain:
            keep = self._answered(every, {event.id for event in events}, outcomes)
        self.recorded = part.after
        if keep < len(every):
            # The rest has no answer, and nothing was read behind it: it is read again.
            reached = every[keep - 1].position if keep else 0
            self.recorded = self.reading = part.before.after(reached, part.until, complete=False)
        withheld = {event.id for event in part.withheld}
        for event in every[:keep]:
            if event.id in withheld:
                self._park(event, now, HELD)
            else:
                self._record(event, outcomes.get(event.id), now)

    def _answered(self, every: Sequence[ClaimedEvent], handed: set[UUID], outcomes: Mapping[UUID, Outcome]) -> int:
        """How many events come before the unanswered ones at the end."""
        keep = len(every)
        for place in range(len(every) - 1, -1, -1):
            event = every[place]
            if event.id in outcomes:
                break
            if event.id in handed:
                keep = place
        return keep

    def _record(self, event: ClaimedEvent, outcome: Outcome | None, now: float) -> None:
        match outcome:
            case Dispatched():
                self.dispatched += 1
            case Retry():
                self._park(event, now + wait_of(outcome), outcome.reason, event.attempts + outcome.counts)
            case Dead():
                row = self._park(event, now, outcome.reason)
                attempts = event.attempts + 1
                self.parked.bury(row, attempts=attempts, reason=outcome.reason, holds=self.holds(event.topic))
            case None:
                self._park(event, now, GIVEN_BACK, event.attempts)

    def _pass(self, part: Part, now: float) -> None:
        """The cursor moves over a part that has no outcomes: given back, or still in its claim's hands."""
        self.recorded = part.after
        for event in part.events:
            row = self._park(event, now, GIVEN_BACK)
            if not part.released:
                row.claim = part.claim
                self.in_hand += 1
                part.claim.parked.append((self, row, event))
        for event in part.withheld:
            self._park(event, now, HELD)

    def _park(self, event: ClaimedEvent, due_at: float, reason: str, attempts: int = 0) -> Parked:
        return self.parked.park(
            event.id, event.aggregate_id, event.position, due_at=due_at, attempts=attempts, reason=reason
        )

    def record_parked(self, row: Parked, event: ClaimedEvent, outcome: Outcome | None, now: float) -> None:
        """What became of an event that had been set aside."""
        self.free_parked(row)
        if row.gone:
            return
        match outcome:
            case Dispatched():
                self.dispatched += 1
                self.parked.remove(row)
            case Retry():
                due_at = now + wait_of(outcome)
                self.parked.retry(row, due_at=due_at, attempts=row.attempts + outcome.counts, reason=outcome.reason)
            case Dead():
                holds = self.holds(event.topic)
                self.parked.bury(row, attempts=row.attempts + 1, reason=outcome.reason, holds=holds)

    def free_parked(self, row: Parked) -> None:
        self.in_hand -= 1
        self.parked.free(row)

    def _unwithhold(self, events: Sequence[ClaimedEvent]) -> None:
        for event in events:
            self.withheld[event.aggregate_id] -= 1
            if not self.withheld[event.aggregate_id]:
                del self.withheld[event.aggregate_id]


def wait_of(retry: Retry) -> float:
    """Seconds, within reason."""
    return min(retry.wait, _LONGEST_WAIT) if retry.wait > 0 else 0.0
