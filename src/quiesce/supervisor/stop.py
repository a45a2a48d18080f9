"""The stop token of one worker, and the only door to new iterations."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event, IterationEnded
from quiesce.supervisor.every import Every, EverySync, Iteration
from quiesce.supervisor.leaving import carried, result_of

T = TypeVar("T")

log = logging.getLogger("quiesce.supervisor")

WAIT_ENDS_WITHIN = 1.0
"""Seconds in which an idle wait must have ended once it is cancelled."""


class StopToken:
    """Implements the port `Stop`. The shell calls `fire`; everything else is the worker's.

    Args:
        worker: the worker's name, for what is told.
        clock: monotonic seconds; the loop's clock, so that a test's virtual time counts here too.
        tell: where events go; called from any thread.
        on_abandon: is told worker, what and count.
        bound: seconds that the budget gives it, once it is told to stop.
    """

    def __init__(
        self,
        worker: str,
        clock: Callable[[], float],
        tell: Callable[[Event], None],
        on_abandon: Callable[[str, str, int], None],
        bound: float | None = None,
    ) -> None:
        self.worker = worker
        self.reason: str | None = None
        self.deadline = Deadline.never()
        self.bound = bound
        self._clock = clock
        self._tell = tell
        self._on_abandon = on_abandon
        self._fired = asyncio.Event()
        self._fired_for_threads = threading.Event()
        # Reentrant: an iteration may be ended by the collector, in the middle of any line below.
        self._intake = threading.RLock()
        self._in_hand: set[Iteration] = set()
        self._wakers: list[Callable[[], object]] = []
        self.abort_cause: str | None = None
        self.begun = 0
        """Iterations that were begun so far."""

    def fire(self, reason: str, deadline: Deadline) -> None:
        """Closes the intake. Runs on the loop's thread. A second call changes nothing."""
        with self._intake:
            # Under the lock: a thread is either past `begin`, and then in hand, or will be refused.
            if self.reason is not None:
                return
            self.deadline = deadline
            self.reason = reason
        self._fired_for_threads.set()
        self._fired.set()
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            self._wake(wake)

    def shorten(self, deadline: Deadline) -> None:
        """Less time is left than was told. Runs on the loop's thread."""
        self.deadline = min(self.deadline, deadline)

    def abort(self, cause: str) -> None:
        """The worker is given up. Said before the cancel, so that whoever gets that can ask. The first counts."""
        if self.abort_cause is None:
            self.abort_cause = cause

    @property
    def requested(self) -> bool:
        return self.reason is not None

    @property
    def aborted(self) -> bool:
        return self.abort_cause is not None

    def time(self) -> float:
        """Seconds of the clock that `deadline` is on."""
        return self._clock()

    def remaining(self) -> float:
        return self.deadline.remaining(self._clock())

    async def wait(self) -> None:
        await self._fired.wait()

    def wait_sync(self, timeout: float) -> bool:
        return self._fired_for_threads.wait(timeout)

    async def sleep(self, seconds: float) -> bool:
        if self.requested:
            return False
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._fired.wait()
        except TimeoutError:
            # Time and stop can come in one turn of the loop; then the stop counts.
            return not self.requested
        return False

    def sleep_sync(self, seconds: float) -> bool:
        self._fired_for_threads.wait(max(0.0, seconds))
        return not self.requested

    async def or_stop(self, work: Coroutine[Any, Any, T]) -> T | None:
        if self.requested:
            work.close()
            return None
        loop = asyncio.get_running_loop()
        waiting = loop.create_task(carried(work), name=f"{self.worker} waits")
        woken = loop.create_future()
        wake = partial(_set, woken)
        waiting.add_done_callback(wake)
        self.on_stop(wake)
        try:
            # Not bounded: it is an idle wait, and a stop or an abort ends it.
            await woken
        finally:
            with self._intake:
                if wake in self._wakers:
                    self._wakers.remove(wake)
            if not waiting.done():
                waiting.cancel(f"stop requested: {self.reason}" if self._fired.is_set() else None)
                await asyncio.wait((waiting,), timeout=WAIT_ENDS_WITHIN)
        if not waiting.done():
            log.warning("%s: a cancelled wait did not end in %g s", self.worker, WAIT_ENDS_WITHIN)
            return None
        if waiting.cancelled() and self._fired.is_set():
            return None
        return result_of(waiting)

    def on_stop(self, wake: Callable[..., object], *args: object) -> None:
        waker = partial(wake, *args) if args else wake
        with self._intake:
            if self.reason is None:
                self._wakers.append(waker)
                return
        self._wake(waker)

    def _wake(self, waker: Callable[[], object]) -> None:
        try:
            waker()
        except BaseException:
            # The stop itself must not fail for it, nor the other wakers.
            log.exception("%s: waking it for the stop failed", self.worker)

    def every(self, seconds: float, *, jitter: float = 0.0) -> AsyncIterator[None]:
        return Every(self, seconds, jitter)

    def every_sync(self, seconds: float, *, jitter: float = 0.0) -> Iterator[None]:
        return EverySync(self, seconds, jitter)

    def begin(self, what: str) -> Iteration | None:
        with self._intake:
            if self.reason is not None:
                return None
            iteration = Iteration(self, what, self._clock())
            self._in_hand.add(iteration)
            self.begun += 1
        return iteration

    def end(self, iteration: Iteration, *, failed: bool) -> None:
        with self._intake:
            if iteration not in self._in_hand:
                return
            self._in_hand.discard(iteration)
        self._tell(IterationEnded(self.worker, self._clock() - iteration.began, failed))

    def put_down(self, *, failed: bool) -> None:
        """Ends what is still in hand when `run` is over: a loop left by an error does not come back to end it."""
        with self._intake:
            left = list(self._in_hand)
        for iteration in left:
            self.end(iteration, failed=failed)

    def in_hand(self) -> list[tuple[str, float]]:
        """What is in hand now: its name, and its age in seconds."""
        now = self._clock()
        with self._intake:
            return [(iteration.what, now - iteration.began) for iteration in list(self._in_hand)]

    def abandon(self, what: str, count: int = 1) -> None:
        self._on_abandon(self.worker, what, count)

    def tell(self, event: Event) -> None:
        self._tell(event)


def _set(woken: "asyncio.Future[None]", _: object = None) -> None:
    if not woken.done():
        woken.set_result(None)
