"""The calls of handlers: begun as the window says, followed to their end, torn where they have to be."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from math import inf

from quiesce.inbox.piece import Handled, Held, Outcome, Piece, PutBack, place_of
from quiesce.inbox.record import Record
from quiesce.inbox.window import Window
from quiesce.lifecycle.ports import Stop
from quiesce.workers.attempts import Attempts
from quiesce.workers.call import Call
from quiesce.workers.raised import raised
from quiesce.workers.starts import Starts
from quiesce.workers.tears import Tears
from quiesce.workers.terms import Terms

log = logging.getLogger("quiesce.workers")

MOST_UNKNOWN = 10
"""Records that may wait behind a key of which nothing is known yet, at most."""

REMEMBERED = 60.0
"""Seconds, at least, in which a slow call keeps a key of which nothing is known from being taken for a quick one."""


class Calls:
    """Those of one run of a consumer. Each has a task of its own.

    Args:
        landed: told of each call that is over, with its outcome and how many of its records came too late.
        gone: called when a partition turns out not to be ours any more.
        fail: ends the run with an error.
    """

    def __init__(
        self,
        terms: Terms,
        window: Window,
        stop: Stop,
        attempts: Attempts,
        starts: Starts,
        *,
        landed: Callable[[Call, Outcome, int], None],
        gone: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.finishing = False
        """A stop is requested: what the window still lets begin belongs to what has begun before."""
        self.halted = False
        """Nothing more begins."""
        self._longest = 0.0
        """Seconds of the longest call of late."""
        self._slowest = self._slowest_before = 0.0
        """Seconds of the slowest call since `_slowest_since`, and of the one in the time before that."""
        self._slowest_since = -inf
        self._terms = terms
        self._source = terms.source
        self._revoke_bound = terms.revoke_bound
        self._window = window
        self._stop = stop
        self._attempts = attempts
        self._starts = starts
        self._tell_landed = landed
        self._gone = gone
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._running: dict[asyncio.Task[Outcome], Call] = {}
        self._due: asyncio.TimerHandle | None = None
        self._tears = Tears(terms, starts, self.running, fail)
        self._over = False
        # Until something is known.
        window.limit_queues(1.0)

    def running(self) -> Collection[Call]:
        return self._running.values()

    def longest(self) -> float:
        """Seconds that a call takes, as far as that is known: the longest of late, or of those in hand."""
        now = self._loop.time()
        return max([self._longest, *(now - call.began for call in self._running.values())])

    def fence(self, call: Call, why: str) -> None:
        """Tears it though it did nothing wrong. Whatever comes of it is no outcome."""
        self._tears.fence(call, why)

    def begin(self, at: float = -inf) -> None:
        """Begins all that may begin now, and looks again when the first of the others may.

        `at`: an instant that has come. A loop's timer may be early by the resolution of its clock.
        """
        while len(self._running) < self._terms.concurrency and not self.halted:
            if self._stop.requested and not self.finishing:
                # Nobody has said yet what still may begin.
                break
            piece = self._window.next(max(at, self._loop.time()))
            if piece is None:
                break
            if not all(self._source.ours(part.newest, part.source) for part in piece.partitions):
                # Taken away, and nobody has told us yet.
                self._window.ended(piece, PutBack())
                self._gone()
                continue
            # Behind a stop there are no new iterations: what begins now ends what one of them has begun.
            iteration = nullcontext() if self.finishing else self._stop.begin(str(piece))
            if iteration is None:
                self._window.ended(piece, PutBack())
                break
            call = Call(piece, iteration, self._loop.time())
            call.task = self._loop.create_task(self._carry(call), name=f"{self._terms.name} handles")
            self._running[call.task] = call
            call.task.add_done_callback(self._landed)
            self._tears.began()
        self._wake_at(self._window.wake_at())

    def _wake_at(self, at: float) -> None:
        if self._due is not None:
            if self._due.when() == at:
                return
            self._due.cancel()
            self._due = None
        # Where one is due and did not begin, one that is in hand keeps it from that; its end looks again.
        if self._loop.time() < at < inf and not self.halted:
            self._due = self._loop.call_at(at, self._wake, at)

    def _wake(self, at: float) -> None:
        self._due = None
        self.begin(at)

    async def _carry(self, call: Call) -> Outcome:
        try:
            with call.iteration:
                outcome = await self._attempts.make(call)
                if not isinstance(outcome, Handled):
                    raise _NotDone(outcome)
        except _NotDone as not_done:
            outcome = not_done.outcome
        except asyncio.CancelledError:
            outcome = PutBack()
        except BaseException as error:  # noqa: BLE001 - raised by the run; SystemExit in a task would tear the loop down
            log.error("%s: %s ends the consumer: %s", self._terms.name, call.piece, raised(error))
            self._fail(error)
            outcome = PutBack()
        call.outcome = outcome
        if self._starts.counted and call.noted:
            await self._starts.end(self._over_now(call.piece, outcome))
        return outcome

    def _over_now(self, piece: Piece, outcome: Outcome) -> Sequence[Record]:
        """The records of a piece that are in hand no more. What begins again at once is, all the while."""
        if isinstance(outcome, Handled) or piece.of_key is not None:
            return piece.records
        waits = outcome.until if isinstance(outcome, Held) else ()
        gone = {part.source for part in piece.partitions if part.leaving or part.dropped or self.halted}
        torn = gone if isinstance(outcome, PutBack) else ()
        return [r for r in piece.records if r.source in torn or place_of(r) in waits or place_of(r) in piece.settled]

    def _landed(self, task: asyncio.Task[Outcome]) -> None:
        call = self._running.pop(task)
        # One that took long long ago counts less and less.
        self._longest = max(0.99 * self._longest, self._loop.time() - call.began)
        outcome = call.outcome
        if outcome is None:
            # Torn before its first step: nobody has ended its iteration. A tear behind the last step does not count.
            outcome = PutBack()
            call.iteration.__exit__(None, None, None)
        try:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
            if isinstance(outcome, Handled):
                self._took(call)
            late = self._window.ended(call.piece, outcome)
            if not self._over:
                self._tell_landed(call, outcome, late)
        except BaseException as error:  # noqa: BLE001 - in a callback it would be logged, and nothing more would ever begin
            self._fail(error)

    def _took(self, call: Call) -> None:
        """So many may wait behind one key as are done in time when their partition goes, by what its last call took."""
        now = self._loop.time()
        seconds = now - call.began
        if call.piece.of_key is not None:
            call.piece.of_key.limit = self._done_in_time(seconds)
        if now >= self._slowest_since + REMEMBERED:
            self._slowest_before, self._slowest, self._slowest_since = self._slowest, 0.0, now
        self._slowest = max(self._slowest, seconds)
        # What nobody knows yet may be as slow as the slowest of late.
        slowest = max(self._slowest, self._slowest_before)
        self._window.limit_queues(min(MOST_UNKNOWN, self._done_in_time(slowest)))

    def _done_in_time(self, seconds: float) -> float:
        """How many calls of one key, of so many seconds, a revoke leaves time for behind the one in hand: half of what
        gets through while anything may still begin, see `Revokes`. None, where calls take a quarter of the bound."""
        bound = self._revoke_bound
        share = min(1.0, self._terms.concurrency / max(1, len(self._window.parts)))
        return share * bound // (4 * max(seconds, 1e-6))

    # The end.

    async def wait(self, seconds: float) -> None:
        """Waits until one of them is over, or the time is."""
        if self._running:
            # At least a moment: what is left of a difference of two instants may be too little for a clock to show.
            bound = min(max(0.001, seconds), 3600.0)
            await asyncio.wait(set(self._running), timeout=bound, return_when=asyncio.FIRST_COMPLETED)

    async def tear(self, why: str, within: float) -> int:
        """Tears them all, bounded. Returns how many of their records were not done."""
        self.halted = True
        calls = list(self._running.values())
        for call in calls:
            call.fence(why)
        if calls:
            await asyncio.wait(set(self._running), timeout=within)
        return sum(len(call.piece.records) for call in calls if not _is_done(call))

    def close(self) -> None:
        """What still ends is told to nobody."""
        self._over = self.halted = True
        self._tears.close()
        if self._due is not None:
            self._due.cancel()


class _NotDone(Exception):
    """Ends an iteration that did not do its piece, as a failed one."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(type(outcome).__name__)
        self.outcome = outcome


def _is_done(call: Call) -> bool:
    return isinstance(call.outcome, Handled)
