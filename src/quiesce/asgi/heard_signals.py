"""Hears the signals of a process that belongs to somebody else, and passes every one on."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from quiesce.supervisor.signals import DEBOUNCE, SIGNALS

log = logging.getLogger("quiesce.asgi")


class HeardSignals:
    """Stands in front of the server's own handlers and calls them each time: it takes nothing away.

    Only in the main thread, and only where the server has a handler; else the service learns of the stop when
    the server ends its lifespan.

    Args:
        listener: is called on the loop with the number of the step (1, 2, ...) and that of the signal.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: Callable[[int, int], None]) -> None:
        self._loop = loop
        self._listener = listener
        self._previous: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._steps = 0
        self._last: float | None = None

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            log.warning("signals are not heard: the server does not run in the main thread")
            return
        for number in SIGNALS:
            previous = signal.getsignal(number)
            if callable(previous) and previous is not signal.default_int_handler:
                self._previous[number] = previous
                signal.signal(number, self._handle)
        if not self._previous:
            log.warning("signals are not heard: the server has no handlers in this process")
        # A forked child is not the server: it has no loop to call.
        os.register_at_fork(after_in_child=self.restore)

    def restore(self) -> None:
        """Gives the signals back, those that nobody else has taken since."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, previous)

    @property
    def heard(self) -> bool:
        return self._steps > 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._last is None or now - self._last >= DEBOUNCE:
            self._last = now
            self._steps += 1
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._listener, self._steps, number)
        self._previous[number](number, frame)
