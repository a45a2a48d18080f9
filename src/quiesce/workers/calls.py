"""The calls of handlers: begun as the window says, followed to their end, torn where they have to be."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
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
        self.halted = False
        """Nothing more begins."""
        self._terms = terms
        self._source = terms.source
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

    def running(self) -> Collection[Call]:
        return self._running.values()

    def fence(self, call: Call, why: str) -> None:
        """Tears it though it did nothing wrong. Whatever comes of it is no outcome."""
        self._tears.fence(call, why)

    def begin(self, at: float = -inf) -> None:
        """Begins all that may begin now, and looks again when the first of the others may.

        `at`: an instant that has come. A loop's timer may be early by the resolution of its clock.
        """
        while len(self._running) < self._terms.concurrency and not (self.halted or self._stop.requested):
            piece = self._window.next(max(at, self._loop.time()))
            if piece is None:
                break
            if not all(self._source.ours(part.newest, part.source) for part in piece.partitions):
                # Taken away, and nobody has told us yet.
                self._window.ended(piece, PutBack())
                self._gone()
                continue
            iteration = self._stop.begin(str(piece))
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
        outcome = call.outcome
        if outcome is None:
            # Torn before its first step: nobody has ended its iteration. A tear behind the last step does not count.
            outcome = PutBack()
            call.iteration.__exit__(None, None, None)
        try:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
            late = self._window.ended(call.piece, outcome)
            if not self._over:
                self._tell_landed(call, outcome, late)
        except BaseException as error:  # noqa: BLE001 - in a callback it would be logged, and nothing more would ever begin
            self._fail(error)

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
