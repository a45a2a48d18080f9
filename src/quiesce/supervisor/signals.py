"""The signal ladder: the first signal drains, the second aborts, the third exits at once."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
DEBOUNCE = 1.0
"""Seconds in which a further signal counts as the same one: Ctrl-C often arrives as INT and TERM together."""


class SignalLadder:
    """Remembers signals from the moment it is installed, and hands them to whoever attaches.

    Nothing is raised from the handler: it would surface in the middle of any line, a COMMIT included.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, debounce: float = DEBOUNCE) -> None:
        self._clock = clock
        self._debounce = debounce
        self._steps: list[int] = []
        self._last: float | None = None
        self._previous: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: Callable[[int, int], None] | None = None

    def install(self) -> None:
        """Takes SIGTERM and SIGINT. Must run in the main thread, before heavy imports."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals can only be taken in the main thread; use quiesce.running elsewhere")
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Gives the signals back to whoever had them."""
        for number, previous in self._previous.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        self._previous.clear()

    def attach(self, loop: asyncio.AbstractEventLoop, listener: Callable[[int, int], None]) -> None:
        """Calls `listener(step, number)` on the loop for each step, those before the attachment too."""
        self._loop, self._listener = loop, listener
        for step, number in enumerate(list(self._steps), start=1):
            listener(step, number)

    def detach(self) -> None:
        self._loop = self._listener = None

    def received(self) -> list[int]:
        """Signal numbers that counted as a step so far."""
        return list(self._steps)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        if self._last is not None and now - self._last < self._debounce:
            return
        self._last = now
        self._steps.append(number)
        step = len(self._steps)
        if step >= 3:
            # No clean-up on purpose: somebody has asked three times.
            os._exit(128 + number)
        if self._loop is not None and self._listener is not None:
            try:
                self._loop.call_soon_threadsafe(self._listener, step, number)
            except RuntimeError:
                # The loop is closed: the process is already on its way out.
                return
