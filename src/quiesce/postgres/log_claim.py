"""One claim of the log store: pages of lanes, and events set aside that are due."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from uuid import UUID

from quiesce.errors import ClaimLost
from quiesce.outbox.answers import all_dispatched
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Dispatched, Outcome, Retry
from quiesce.outbox.ports import GrowingClaim, Settled
from quiesce.postgres.log_lane import LaneLog, Part
from quiesce.postgres.log_parked import Parked

Record = Callable[["LogClaim"], "asyncio.Future[None]"]
Ended = Callable[["LogClaim"], None]


class LogClaim:
    """See the port `Claim`. Nothing is locked in the database: it holds for as long as its lanes are ours."""

    def __init__(self, number: int, record: Record, ended: Ended) -> None:
        """`number` is its place among all claims of the store. `record` has it written down, in its turn; `ended` is
        called once, when that is done or it was given back."""
        self.number = number
        self.parts: list[Part] = []
        self.parked: list[tuple[LaneLog, Parked, ClaimedEvent]] = []
        self.outcomes: Mapping[UUID, Outcome] | None = None
        self.all_dispatched = False
        self.logs: dict[int, LaneLog] = {}
        """The lanes it has something of."""
        self.first: tuple[int, int] | None = None
        """Position and lane of its first dispatched event."""
        self.written_at: float | None = None
        """When the transaction of that event began: monotonic seconds, from the database's clock. None: not asked."""
        self.withdrawn = False
        """Whether its lanes have anything to record beside its events."""
        self._events: list[ClaimedEvent] = []
        self._open = True
        self._record = record
        self._ended = ended

    @property
    def events(self) -> Sequence[ClaimedEvent]:
        return self._events

    @property
    def open(self) -> bool:
        return self._open

    def take_parked(self, log: LaneLog, row: Parked, event: ClaimedEvent) -> None:
        row.claim = self
        log.in_hand += 1
        self.parked.append((log, row, event))
        self.logs[log.lane] = log

    def take_part(self, part: Part) -> None:
        self.parts.append(part)
        self.logs[part.log.lane] = part.log

    def withdraws(self, log: LaneLog) -> None:
        """Something set aside in that lane is no more."""
        self.withdrawn = True
        self.logs[log.lane] = log

    def fill(self) -> None:
        """Puts the events in order, once they are all there."""
        events = [event for _, _, event in self.parked]
        for part in self.parts:
            events += part.events
        if len(self.parts) > 1 or self.parked:
            events.sort(key=attrgetter("position"))
        self._events = events

    def absorb(self, later: GrowingClaim) -> None:
        """See the port. What was read later stands behind what was read before, lane by lane."""
        assert isinstance(later, LogClaim)
        later._open = False
        self._events += later._events
        for part in later.parts:
            part.claim = self
            self.take_part(part)
        later.logs = {}
        later.end()

    async def settle(self, outcomes: Mapping[UUID, Outcome]) -> Settled:
        """See the port. Durable when it returns. Cancelled, it goes on by itself: whether it was recorded is unknown.

        Where some of its lanes were lost, the others are recorded all the same, and it raises.
        """
        if not self._open:
            if self._events:
                raise ClaimLost("the claim has ended already")
            return Settled()
        # Asked once for each event, and nearly always true: the rest of the way is paid for by the page.
        self.all_dispatched = all_dispatched(outcomes, self._events) or all(
            outcomes.get(event.id) is DISPATCHED for event in self._events
        )
        counted = Settled(len(self._events)) if self.all_dispatched else _counted(self._events, outcomes)
        if counted.released == len(self._events):
            await self.release()
            return counted
        self._open = False
        self.outcomes = outcomes
        self.first = min(self._firsts(), default=None)
        # A task of its own records it: whoever gives up waiting does not take back what the broker has acked.
        await self._record(self)
        lost = [log.lost for log in self.logs.values() if log.lost]
        if lost:
            why = "; ".join(sorted(set(lost)))
            raise ClaimLost(f"{len(lost)} of {len(self.logs)} lanes of the claim were lost: {why}")
        if self.written_at is not None:
            return replace(counted, waited=max(0.0, time.monotonic() - self.written_at))
        return counted

    def _firsts(self) -> Iterator[tuple[int, int]]:
        """Position and lane of the first dispatched event of each lane, and of those that had been set aside."""
        outcomes = self.outcomes or {}
        for log, _, event in self.parked:
            if self.all_dispatched or outcomes.get(event.id) == DISPATCHED:
                yield event.position, log.lane
        for part in self.parts:
            for event in part.events:
                if self.all_dispatched or outcomes.get(event.id) == DISPATCHED:
                    yield event.position, part.log.lane
                    break

    async def record_withheld(self) -> None:
        """For a claim that has nothing to hand out: sets aside what it has passed over."""
        self._open = False
        self.outcomes = {}
        await self._record(self)

    async def release(self) -> None:
        """See the port. Nothing is asked of the database."""
        self.give_back()

    def give_back(self) -> bool:
        """Whether it was still open."""
        if not self._open:
            return False
        self._open = False
        for log, row, _ in reversed(self.parked):
            log.free_parked(row)
        for part in reversed(self.parts):
            part.log.release(part)
        self.end()
        return True

    def plan(self, now: float) -> None:
        """Moves the cursors of its lanes in memory, and tells what has to be set aside."""
        for log, row, event in self.parked:
            log.record_parked(row, event, self.outcomes.get(event.id) if self.outcomes else None, now)
        for part in self.parts:
            if not part.planned and not part.log.lost:
                part.log.plan(part, now)

    def end(self) -> None:
        self._ended(self)
        # Each part knows its claim: the events of claim after claim would stay until the garbage is looked for.
        self.parts.clear()


def _counted(events: Sequence[ClaimedEvent], outcomes: Mapping[UUID, Outcome]) -> Settled:
    kinds = Counter(type(outcomes.get(event.id)) for event in events)
    return Settled(kinds[Dispatched], kinds[Retry], kinds[Dead], kinds[type(None)])
