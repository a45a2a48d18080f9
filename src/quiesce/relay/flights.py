"""All claims that are open at once, and how they are given up together."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from math import inf

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Stop
from quiesce.outbox.events import ClaimSettled, InFlightChanged, MarksMissing, ProducerDiscarded
from quiesce.outbox.ports import AddsToCalls, AnswersLate, Claim, GrowingClaim, Publisher
from quiesce.relay.allowance import Allowance
from quiesce.relay.flight import Flight
from quiesce.relay.held_keys import HeldKeys
from quiesce.relay.letter_log import Letter, LetterLog
from quiesce.relay.patience import GivingUp, stalled_at
from quiesce.relay.progress import Progress
from quiesce.relay.settings import RelaySettings
from quiesce.relay.waits import Waits

log = logging.getLogger("quiesce.relay")

_FREE_BOUND = 1.0
"""Seconds in which a claim that went wrong has to be freed, when there is no hurry."""

_UNWINDING = 0.02
"""Seconds that a torn flight may take for everything but freeing its claim."""


class Flights:
    """The open claims of one run. Each is carried by a task of its own, begun in the order of the claims."""

    def __init__(
        self, settings: RelaySettings, publisher: Publisher, stop: Stop, waits: Waits, progress: Progress
    ) -> None:
        self.settings = settings
        self.publisher = publisher
        self.adds = publisher if isinstance(publisher, AddsToCalls) else None
        self._answers_late = publisher if isinstance(publisher, AnswersLate) else None
        self._late = False
        self.held = HeldKeys()
        self._letters = LetterLog(settings.name)
        self.broken = False
        """Answers are missing for good, or a claim failed: nothing more may be handed over before the producer
        is discarded and everything is given back."""
        self.quiet = False
        """Nobody waits for a flight to land, unless something is wrong."""
        self._stop = stop
        self._waits = waits
        self._progress = progress
        self._within = progress.within = settings.within(stop.bound)
        self._allowance = Allowance(settings, self._within, progress)
        self._task_name = f"{settings.name}: claim"
        self._tasks: dict[asyncio.Task[None], Flight] = {}
        self._last: Flight | None = None
        self._discarded = asyncio.Event()
        self._failures: list[Exception] = []
        self._settled = 0
        self._until = inf
        self._stop_counts = False
        self._free = _FREE_BOUND

    @property
    def count(self) -> int:
        return len(self._tasks)

    @property
    def events(self) -> int:
        return sum(flight.size for flight in self._tasks.values())

    def launch(
        self, claim: Claim, iteration: ExitStack, claimed_at: float, growing: GrowingClaim | None = None
    ) -> None:
        """Takes over a claim and its iteration; both are ended by the flight. `growing`: see `Flight`."""
        flight = self._last = Flight(claim, iteration, claimed_at, self, growing)
        task = asyncio.get_running_loop().create_task(flight.carry(), name=self._task_name)
        self._tasks[task] = flight
        self._count()
        self._progress.claimed(self.now())
        task.add_done_callback(self._landed)
        self.may_answer_late(self.count < self.settings.max_claims)
        if self.quiet:
            # It waits for less long now: for an answer.
            self._waits.wake()

    def may_answer_late(self, late: bool) -> None:
        """Whether nobody waits for the end of a claim, so that several may end, and be settled, at once."""
        if self._late is not late:
            self._late = late
            if self._answers_late is not None:
                self._answers_late.may_answer_late(late)

    def grow(self, claim: GrowingClaim) -> bool:
        """Adds what was claimed right now to the flight that was launched last. Whether it could be; else nothing has
        happened."""
        # Whatever needs a closer look needs a flight of its own.
        return self._last is not None and not self.held.any and self.may_hand_over() and self._last.grow(claim)

    def stalled_at(self) -> float:
        """When the broker's silence becomes an outage; infinity while no answer is missing."""
        waiting = [flight.waiting_since for flight in self._tasks.values() if flight.waiting_since is not None]
        at = stalled_at(min(waiting, default=None), self._progress.last_ack_at, self.settings.publish_bound)
        return inf if at is None else at

    def allowed(self) -> int:
        """How many events may be in flight, so that a stop can finish them all."""
        return self._allowance.now(self._tasks.values(), self.now())

    def take_failure(self) -> Exception | None:
        """An unexpected error of one of the flights, if there was one."""
        return self._failures.pop(0) if self._failures else None

    def take_settled(self) -> int:
        """How many claims were settled since it was last asked."""
        settled, self._settled = self._settled, 0
        return settled

    async def give_up(self, reason: str, within: float) -> int:
        """Discards the producer, settles what was acked, frees the rest.

        All of it within `within` seconds, or before the deadline of a stop that comes meanwhile. Returns how
        many published events had no answer. Cancelled, it has torn nothing: it may be called again.
        """
        if not self._tasks and not self.broken:
            return 0
        flights = list(self._tasks.values())
        self._until = self.now() + within
        # Whoever gives up after a stop has reckoned with its deadline, or is past it.
        self._stop_counts = not self._stop.requested
        steps = GivingUp.within(within, self.settings.store_bound)
        self._free = steps.free
        messages = await self._discard(steps.discard)
        self._discarded.set()
        self._stop.tell(ProducerDiscarded(self.settings.name, reason, messages))
        await self._land(steps.settle)
        await self.tear()
        self._discarded = asyncio.Event()
        self.broken = False
        self._until, self._free = inf, _FREE_BOUND
        return sum(flight.unanswered for flight in flights)

    def free_bound(self) -> float:
        """Seconds in which a claim that is torn has to be freed."""
        return min(self._free, max(0.0, self._left()))

    def _left(self) -> float:
        until = min(self._until, self._stop.deadline.at) if self._stop_counts else self._until
        return until - self.now()

    async def _discard(self, bound: float) -> int:
        try:
            # A little longer than its own deadline: an answer in time must not be torn.
            async with self._waits.at_most(bound * 1.1, after_stop=lambda: 0.5 * max(0.0, self._left())):
                return await self.publisher.discard(Deadline(self.now() + bound))
        except TimeoutError:
            log.error("%s: the producer could not be discarded in %.3g s", self.settings.name, bound)
        except Exception:
            log.exception("%s: discarding the producer failed", self.settings.name)
        return sum(flight.unanswered for flight in self._tasks.values())

    async def _land(self, bound: float) -> None:
        """Waits until every flight is over, for `bound` seconds, or until there is only time to free."""
        until = self.now() + bound
        while self._tasks:
            self._waits.look()
            left = min(until - self.now(), self._left() - self._free)
            if left <= 0:
                return
            await self._waits.idle(left)

    async def tear(self) -> None:
        """Cancels what still hangs. Each flight frees its claim, bounded."""
        if not self._tasks:
            return
        # One turn of the loop: a flight that has not begun would never run its clean-up.
        await asyncio.sleep(0)
        hanging = set(self._tasks)
        for task in hanging:
            task.cancel("the relay gives up")
        if hanging:
            await asyncio.wait(hanging, timeout=self.free_bound() + _UNWINDING)
        for task in hanging:
            if not task.done():
                log.error("%s: a claim did not end in time", self.settings.name)

    # What the flights ask and tell: the port `Control`.

    def now(self) -> float:
        """Seconds of the loop's clock."""
        return self._waits.now()

    def may_hand_over(self) -> bool:
        return not self._stop.requested and not self.broken

    def claimed_more(self) -> None:
        self._count()

    def answered(self) -> None:
        waiting = any(flight.waiting_since is not None for flight in self._tasks.values())
        self._progress.answered(self.now(), others_wait=waiting)

    def measured(self, events: int, began: float, answered_at: float) -> None:
        """A claim was handed over then and is answered."""
        self._allowance.measured(events, began, answered_at, self.now())
        self._allowance.tell(self.allowed(), self.now())

    def refused(self, events: int, of: int) -> None:
        if events == of:
            self._allowance.refused(events)

    async def until_discarded(self) -> None:
        """Waits until no message can reach the broker any more. The loop sees to it, and bounds it."""
        self.broken = True
        self._waits.wake()
        await self._discarded.wait()

    def settled(self, event: ClaimSettled, letters: Sequence[Letter]) -> None:
        self._settled += 1
        self._letters.tell(letters, self.now())
        self._stop.tell(event)

    def unmarked(self, events: int, why: str) -> None:
        """Events were acked and their marks were not recorded, or nobody knows: they come again."""
        if not events:
            return
        self._progress.unmarked += events
        log.warning("%s: %d acked events are published again: %s", self.settings.name, events, why)
        self._stop.tell(MarksMissing(self.settings.name, events))
        if self._stop.requested and self.settings.on_drain == "finish":
            self._stop.abandon("acked events without a mark", events)

    def failed(self, error: Exception) -> None:
        # Its claim may have been freed unpublished: what was claimed after it must not overtake it.
        self.broken = True
        self._failures.append(error)

    def _count(self) -> None:
        self._progress.in_flight = self.events
        name, most = self.settings.name, self.settings.max_in_flight
        allowed, pace = self._progress.allowed, self._progress.pace
        self._stop.tell(InFlightChanged(name, self._progress.in_flight, allowed, most, pace, self._within))

    def _landed(self, task: asyncio.Task[None]) -> None:
        if self._tasks.pop(task) is self._last:
            self._last = None
        self._count()
        if not self.quiet or self.broken or self._failures:
            self._waits.wake()
