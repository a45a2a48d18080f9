"""A worker that does the same thing again and again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import random
from typing import Any

from quiesce.errors import SettingsError
from quiesce.lifecycle.grid import Grid
from quiesce.lifecycle.ports import OnDrain, Stop
from quiesce.workers.arguments import After, check_seconds, check_terms, worker_name
from quiesce.workers.iteration import iterate

log = logging.getLogger("quiesce.workers")


class Periodic:
    """Calls `await fn(*args)` every `seconds`, measured from start to start on a fixed grid.

    The first time is one interval after the start, so that a service which restarts again and again does
    not run it again and again; `at_once=True` runs it right away. A call that takes longer than an
    interval is not overtaken and not caught up with: the grid points it missed are skipped.

    A call that raises is logged with its traceback, counted as failed, and followed by the next one at
    its time, without limit: one failed clean-up must not end a service.

    Args:
        seconds: the interval.
        fn: a coroutine function.
        name: for logs, metrics and the report; the function's own by default.
        jitter: up to this many seconds, drawn anew each time, are added to each start, to keep many
            replicas apart. The grid itself stays. At most `seconds`.
        on_drain: what becomes of a call in hand when a stop is requested: "finish" lets it end within
            `bound`, "cancel" has it cancelled at once.
        bound: seconds it may take once it is told to stop; the budget's `workers` by default.
        after: "http" has it told to stop after the HTTP drain.
        at_once: whether the first call comes at the start instead of one interval later.

    Raises:
        SettingsError: an argument is wrong.
    """

    def __init__(
        self,
        seconds: float,
        fn: Callable[..., Awaitable[object]],
        *args: Any,
        name: str | None = None,
        jitter: float = 0.0,
        on_drain: OnDrain = "finish",
        bound: float | None = None,
        after: After = None,
        at_once: bool = False,
        draw: Callable[[], float] = random,
    ) -> None:
        self.name = worker_name(name, fn)
        check_terms(self.name, bound, on_drain, after)
        check_seconds(self.name, "seconds", seconds, above=0.0)
        check_seconds(self.name, "jitter", jitter)
        if jitter > seconds:
            raise SettingsError(
                f"worker {self.name!r}: jitter: got {jitter:g}, takes seconds, at most the interval {seconds:g}"
            )
        self.bound = bound
        self.on_drain = on_drain
        self.after = after
        self._seconds = seconds
        self._jitter = jitter
        self._at_once = at_once
        self._draw = draw
        self._fn = fn
        self._args = args

    async def run(self, stop: Stop) -> None:
        now = asyncio.get_running_loop().time
        grid = Grid(now(), self._seconds)
        # The origin itself is a grid point: it counts as past unless the first call comes at once.
        last = -1 if self._at_once else 0

        async def tick() -> int | None:
            nonlocal last
            index = grid.next_index(last, now())
            if index > last + 1:
                log.info("%s: %d starts skipped, it was still running", self.name, index - last - 1)
            last = index
            delay = grid.instant(index) + self._jitter * self._draw() - now()
            return index if await stop.sleep(delay) else None

        async def call(_: int) -> None:
            await self._fn(*self._args)

        await iterate(stop, self.name, ready=tick, once=call, failed=self._failed)

    def _failed(self, error: Exception) -> None:
        log.error("%s failed; the next one comes at its time", self.name, exc_info=error)
