"""The stop token of one worker, and the only door to new iterations."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event, IterationEnded


class Iteration:
    """One iteration in hand. A context manager; leaving it by an exception counts it as failed."""

    __slots__ = ("_token", "began", "what")

    def __init__(self, token: "StopToken", what: str, began: float) -> None:
        self._token = token
        self.what = what
        self.began = began

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._token.end(self, failed=kind is not None and issubclass(kind, Exception))


class StopToken:
    """Implements the port `Stop`. The shell calls `fire`; everything else is the worker's.

    Args:
        worker: the worker's name, for what is told.
        clock: monotonic seconds; the loop's clock, so that a test's virtual time counts here too.
        tell: where events go; called from any thread.
        on_abandon: is told worker, what and count.
    """

    def __init__(
        self,
        worker: str,
        clock: Callable[[], float],
        tell: Callable[[Event], None],
        on_abandon: Callable[[str, str, int], None],
    ) -> None:
        self.worker = worker
        self.reason: str | None = None
        self.deadline = Deadline.never()
        self._clock = clock
        self._tell = tell
        self._on_abandon = on_abandon
        self._fired = asyncio.Event()
        self._fired_for_threads = threading.Event()
        self._intake = threading.Lock()
        self._in_hand: set[Iteration] = set()

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

    @property
    def requested(self) -> bool:
        return self.reason is not None

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

    def every(self, seconds: float, *, jitter: float = 0.0) -> AsyncIterator[None]:
        return Every(self, seconds, jitter, self._clock)

    def begin(self, what: str) -> Iteration | None:
        with self._intake:
            if self.reason is not None:
                return None
            iteration = Iteration(self, what, self._clock())
            self._in_hand.add(iteration)
        return iteration

    def end(self, iteration: Iteration, *, failed: bool) -> None:
        with self._intake:
            self._in_hand.discard(iteration)
        self._tell(IterationEnded(self.worker, self._clock() - iteration.began, failed))

    def in_hand(self) -> list[tuple[str, float]]:
        """What is in hand now: its name, and its age in seconds."""
        now = self._clock()
        with self._intake:
            return [(iteration.what, now - iteration.began) for iteration in self._in_hand]

    def abandon(self, what: str, count: int = 1) -> None:
        self._on_abandon(self.worker, what, count)

    def tell(self, event: Event) -> None:
        self._tell(event)


class Every:
    """The iterator behind `stop.every`: one iteration a turn, on a fixed grid.

    A class and not an async generator: a generator left by `break` or an error is finalised at some
    later time, and its iteration would stay in hand until then.
    """

    def __init__(self, token: StopToken, seconds: float, jitter: float, clock: Callable[[], float]) -> None:
        if seconds < 0:
            raise ValueError(f"stop.every: got {seconds}, takes seconds, 0 or more")
        self._token = token
        self._seconds = seconds
        self._jitter = jitter
        self._clock = clock
        self._next: float | None = None
        self._iteration: Iteration | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        if self._iteration is not None:
            self._token.end(self._iteration, failed=False)
            self._iteration = None
        if self._next is None:
            self._next = self._clock()
        else:
            self._next = next_on_grid(self._next, self._seconds, self._clock())
            if not await self._token.sleep(self._next - self._clock() + self._jitter * _draw()):
                raise StopAsyncIteration
        self._iteration = self._token.begin("iteration")
        if self._iteration is None:
            raise StopAsyncIteration


def next_on_grid(last: float, seconds: float, now: float) -> float:
    """The next instant of a grid. Instants that were missed are skipped: a late turn causes no burst."""
    if seconds <= 0:
        return now
    missed = max(0, int((now - last) // seconds))
    return last + seconds * (missed + 1)


def _draw() -> float:
    from random import random

    return random()  # noqa: S311 - spreads load, protects nothing
