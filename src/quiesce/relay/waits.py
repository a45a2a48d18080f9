"""The waits of one run of the relay: each is bounded, and a stop shortens it."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from quiesce.lifecycle.ports import Stop

IDLE_AT_MOST = 1.0
"""Seconds after which an idle loop looks again, whatever it waits for."""


class Waits:
    """Used as an async context manager around the run."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._woken = False
        self._idle: asyncio.Future[None] | None = None
        self._bounds: dict[asyncio.Timeout, Callable[[], float]] = {}
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._watch = self._loop.create_task(self._on_stop(), name="relay waits for stop")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._watch is not None
        self._watch.cancel()
        await asyncio.wait({self._watch}, timeout=IDLE_AT_MOST)

    def now(self) -> float:
        """Seconds of the loop's clock."""
        return self._loop.time()

    def wake(self) -> None:
        """Ends the idle wait, now or, if there is none, the next one."""
        self._woken = True
        if self._idle is not None:
            _release(self._idle)

    def wake_from_any_thread(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.wake)
        except RuntimeError:
            # The loop is closed: there is nobody left to wake.
            return

    def look(self) -> None:
        """What has happened until now is about to be looked at; only what comes later ends the next wait."""
        self._woken = False

    async def idle(self, seconds: float) -> None:
        """Waits until somebody wakes it, a stop being one of them, or until the time is over."""
        if self._woken:
            return
        # Waited for with every claim, so it is made of what costs least.
        self._idle = self._loop.create_future()
        over = self._loop.call_later(min(max(0.0, seconds), IDLE_AT_MOST), _release, self._idle)
        try:
            await self._idle
        finally:
            over.cancel()
            self._idle = None

    def at_most(self, seconds: float, *, after_stop: Callable[[], float]) -> AbstractAsyncContextManager[object]:
        """Bounds what is awaited inside; once a stop is requested, to `after_stop()` more seconds.

        Raises:
            TimeoutError: it took longer, and was cancelled.
        """
        if self._stop.requested:
            seconds = min(seconds, after_stop())
        return _Bounded(self._bounds, asyncio.timeout(seconds), after_stop)

    async def _on_stop(self) -> None:
        # Not bounded on purpose: it is what ends all other waits, and it ends with the run.
        await self._stop.wait()
        for bound, after_stop in self._bounds.items():
            when = bound.when()
            if not bound.expired() and when is not None:
                bound.reschedule(min(when, self.now() + after_stop()))
        self.wake()


class _Bounded:
    """A timeout that is known as long as it counts. A class, since it is entered with every claim."""

    __slots__ = ("_after_stop", "_bound", "_bounds")

    def __init__(
        self,
        bounds: dict[asyncio.Timeout, Callable[[], float]],
        bound: asyncio.Timeout,
        after_stop: Callable[[], float],
    ) -> None:
        self._bounds = bounds
        self._bound = bound
        self._after_stop = after_stop

    async def __aenter__(self) -> None:
        await self._bound.__aenter__()
        self._bounds[self._bound] = self._after_stop

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del self._bounds[self._bound]
        await self._bound.__aexit__(kind, error, traceback)


def _release(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def aborted() -> bool:
    """Whether this task is being cancelled, and not merely something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
