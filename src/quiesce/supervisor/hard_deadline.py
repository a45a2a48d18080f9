"""The end of patience: whatever hangs, the process leaves before the orchestrator kills it."""

import _thread
import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.report import ExitCode

BACKSTOP_AFTER = 0.5
"""Seconds between the thread's turn and the backstop's."""

TELLING = 0.4
"""Seconds for the last report and the stacks: whoever reads our standard error may hang as well. Less than
`BACKSTOP_AFTER`, so that the status is the thread's."""

AT_LEAST = 0.3
"""Seconds, however little was left when the stop was requested: every closer is to be called once."""


def _kept() -> int:
    """A descriptor of our own for the stacks. By the time that they are written `sys.stderr` may be closed, or
    something of the user's that is no file, and the number 2 may be somebody's socket."""
    try:
        if sys.__stderr__ is not None:
            return os.dup(2)
    except OSError:
        pass
    # The backstop must end the process, even where nobody can read why.
    return os.open(os.devnull, os.O_WRONLY)


STACKS_GO_TO = _kept()

_counts: "HardDeadline | None" = None
"""The one that was armed last: a process has one, as `faulthandler` has one timer."""


class HardDeadline:
    """Never disarmed: whatever follows the report, the interpreter's own end included, is bounded by it.

    A thread that writes the report with every stack and ends the process with status 70.

    Behind it stands `faulthandler`, which needs no Python: a thread cannot run while C code holds the
    interpreter lock. Its status is 1.
    """

    def __init__(self, write_report: Callable[[], None], leave: Callable[[int], None] = os._exit) -> None:
        self._write_report = write_report
        self._leave = leave
        self._deadline: Deadline | None = None
        # Its `put` may interrupt itself in a signal handler, which no lock of ours could.
        self._told: SimpleQueue[Deadline] = SimpleQueue()

    def arm(self, deadline: Deadline) -> None:
        """`deadline` is on the clock of `time.monotonic`; the earliest counts. May be called in a signal handler.

        It takes the place of one that another object has armed.
        """
        global _counts
        now = time.monotonic()
        deadline = max(deadline, Deadline(now + AT_LEAST))
        if self._deadline is not None and self._deadline <= deadline:
            return
        first = self._deadline is None
        self._deadline, _counts = deadline, self
        self._told.put(deadline)
        # Each stands without the other, and an error in here would surface in whatever line was interrupted.
        if first:
            with contextlib.suppress(RuntimeError):
                # Not by `threading`: that takes a lock, which the line that was interrupted may hold.
                _thread.start_new_thread(self._watch, ())
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            faulthandler.dump_traceback_later(deadline.remaining(now) + BACKSTOP_AFTER, exit=True, file=STACKS_GO_TO)

    def _watch(self) -> None:
        deadline = self._told.get()
        while (seconds := deadline.remaining(time.monotonic())) > 0:
            with contextlib.suppress(Empty):
                deadline = min(deadline, self._told.get(timeout=seconds))
        if _counts is not self:
            return
        try:
            # In one more thread, since a lock of the log or a full pipe can hold it: we leave all the same.
            telling = threading.Thread(target=self._tell, name="quiesce last report", daemon=True)
            telling.start()
            telling.join(TELLING)
        finally:
            self._leave(ExitCode.HARD_DEADLINE)

    def _tell(self) -> None:
        try:
            self._write_report()
        finally:
            faulthandler.dump_traceback(all_threads=True, file=STACKS_GO_TO)
            with contextlib.suppress(Exception):
                sys.stderr.flush()
