"""The signal ladder: the first signal drains, the second aborts, the third exits at once.

Imports little: the handlers are to be there before anything heavy is loaded.
"""

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

SIGNALS = (signal.SIGTERM, signal.SIGINT)
ASKING = signal.SIGQUIT
"""Asks where everything stands, and ends nothing."""
DEBOUNCE = 1.0
"""Seconds in which a further signal counts as the same one: Ctrl-C often arrives as INT and TERM together."""
LOOK_AGAIN = 0.5
"""Seconds between two looks at who owns the handlers."""

log = logging.getLogger("quiesce.supervisor")


class SignalLadder:
    """Remembers signals from the moment it is installed, and hands them to whoever attaches.

    Nothing is raised from the handler: it would surface in the middle of any line, a COMMIT included.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, debounce: float = DEBOUNCE) -> None:
        self._clock = clock
        self._debounce = debounce
        self._steps: list[int] = []
        self._first_at = 0.0
        self._last: float | None = None
        self._previous: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: Callable[[int, int], None] | None = None
        self._asked: Callable[[], None] | None = None
        self._arm: Callable[[float], None] | None = None
        self._guard: asyncio.TimerHandle | None = None

    def install(self) -> None:
        """Takes SIGTERM, SIGINT and SIGQUIT. Must run in the main thread, before heavy imports."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals can only be taken in the main thread; use quiesce.running elsewhere")
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        self._previous[ASKING] = signal.signal(ASKING, self._ask)
        self._register_stacks()
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        """A forked child is not the service: with our handlers it would swallow the signals that are to end it."""
        self._loop = self._listener = self._asked = self._arm = self._guard = None
        self._steps.clear()
        if self._previous:
            self.restore()

    def restore(self) -> None:
        """Gives the signals back to whoever had them."""
        faulthandler.unregister(ASKING)
        for number, previous in self._previous.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        self._previous.clear()

    def attach(
        self,
        loop: "asyncio.AbstractEventLoop",
        listener: Callable[[int, int], None],
        asked: Callable[[], None] | None = None,
        arm: Callable[[float], None] | None = None,
    ) -> None:
        """Calls `listener(step, number)` on the loop for each step, those before the attachment too, and
        `asked()` for each SIGQUIT. From here on the ownership of the handlers is guarded.

        `arm`: see `arm_with`.
        """
        if arm is not None:
            self.arm_with(arm)
        self._loop, self._listener, self._asked = loop, listener, asked
        for step, number in enumerate(list(self._steps), start=1):
            listener(step, number)
        if self._previous:
            self._guard = loop.call_later(LOOK_AGAIN, self._look_after_handlers)

    def arm_with(self, arm: Callable[[float], None]) -> None:
        """Calls `arm(at)` in the handler itself at the first signal, or now if that has come: `at` is its instant
        on the ladder's clock. Whatever blocks the main thread's next line cannot keep the hard deadline from being
        armed. It takes the place of the one given before."""
        self._arm = arm
        if self._steps:
            arm(self._first_at)

    def detach(self) -> None:
        self._loop = self._listener = self._asked = None
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None

    def received(self) -> list[int]:
        """Signal numbers that counted as a step so far."""
        return list(self._steps)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = self._clock()
        # No call between the question and the answer: a handler can be interrupted by the next signal there.
        if self._last is not None and now - self._last < self._debounce:
            return
        self._last = now
        self._steps.append(number)
        step = len(self._steps)
        if step >= 3:
            # No clean-up on purpose: somebody has asked three times.
            os._exit(128 + number)
        if step == 1:
            self._first_at = now
            if self._arm is not None:
                # Here and not on the loop: the loop may be what hangs.
                self._arm(now)
        if self._listener is not None:
            self._call(self._listener, step, number)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked is not None:
            self._call(self._asked)

    def _call(self, what: Callable[..., None], *args: int) -> None:
        # The loop may be closed: the process is then already on its way out.
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(what, *args)

    def _register_stacks(self) -> None:
        """Before our handler is called, C code writes the stack of every thread: that works whatever hangs."""
        # Without a standard error that is a file there is nowhere to write to.
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
            faulthandler.register(ASKING, file=sys.stderr, all_threads=True, chain=True)

    def _look_after_handlers(self) -> None:
        if self._loop is None:
            return
        for number in self._previous:
            ours = self._ask if number == ASKING else self._handle
            if signal.getsignal(number) != ours:
                self._take_back(number, ours)
        self._guard = self._loop.call_later(LOOK_AGAIN, self._look_after_handlers)

    def _take_back(self, number: int, ours: Callable[[int, FrameType | None], None]) -> None:
        other = signal.getsignal(number)
        name = signal.Signals(number).name
        # Blocked meanwhile: the loop's own removal sets the default action, which would end the process.
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        try:
            assert self._loop is not None
            with contextlib.suppress(NotImplementedError):
                # Otherwise the loop would go on calling what `add_signal_handler` was given.
                self._loop.remove_signal_handler(number)
            signal.signal(number, ours)
            if number == ASKING:
                faulthandler.unregister(ASKING)
                self._register_stacks()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        log.warning("the handler of %s was replaced by %s; it is ours again", name, _named(other))


def _named(handler: Any) -> str:
    module = getattr(handler, "__module__", None)
    name = getattr(handler, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(handler)
