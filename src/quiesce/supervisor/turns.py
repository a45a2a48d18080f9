"""Turns: every input is followed by one, and it does all that is due in the same step of the loop.

So between a signal and the 503 there is no await, and no worker can begin an iteration in between.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from quiesce.lifecycle import commands as do
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.phases import Phase
from quiesce.supervisor.sections import Sections

log = logging.getLogger("quiesce.supervisor")


class Turns:
    """Asks the machine what is due, has it done, and comes again when time alone changes something.

    Args:
        perform: does one thing. What it tells the machine meanwhile is looked at in the same turn.
        failed: is told what could not be done, and why.
    """

    def __init__(
        self,
        machine: Machine,
        sections: Sections,
        perform: Callable[[do.Decision], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._machine = machine
        self._sections = sections
        self._perform = perform
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._turning = self._again = self._is_due = False

    def now(self) -> None:
        """One turn. On the loop's thread."""
        if self._turning:
            self._again = True
            return
        self._turning = True
        try:
            self._again = True
            while self._again:
                self._again = False
                for decision in self._decide():
                    self._do(decision)
        finally:
            self._turning = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at = self._machine.wake_at
        if self._machine.phase is not Phase.STOPPED and wake_at is not None:
            self._timer = self._loop.call_at(wake_at, self.now)

    def soon(self) -> None:
        """One turn for all that comes in this step of the loop: a thousand workers may end in it."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._due)

    def worker_ended(self, failed: bool) -> None:
        if failed:
            self.now()
        elif self._machine.stopping:
            self.soon()

    def section_ended(self) -> None:
        """From any thread."""
        if not self._machine.stopping:
            return
        if threading.get_ident() == self._thread:
            self.soon()
            return
        try:
            self._loop.call_soon_threadsafe(self.soon)
        except RuntimeError:
            # The loop is closed: the thread was left behind, and the service is over.
            return

    def _do(self, decision: do.Decision) -> None:
        try:
            self._perform(decision)
        except BaseException as error:
            # Whatever it was: the decisions behind it are made only once, the hard deadline among them.
            with contextlib.suppress(Exception):
                log.exception("%s could not be done", decision)
            if not isinstance(decision, do.LookAt):
                self._failed(type(decision).__name__, error)

    def _due(self) -> None:
        self._is_due = False
        self.now()

    def _decide(self) -> list[do.Decision]:
        # One act for threads: one that begins a section is either counted here, or refused from here on.
        with self._sections.lock:
            self._machine.sections_open(self._sections.count)
            decisions = self._machine.decide(self._loop.time())
            if self._machine.phase in (Phase.CLOSING, Phase.STOPPED):
                self._sections.close()
        return decisions
