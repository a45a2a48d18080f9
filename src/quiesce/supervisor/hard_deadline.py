"""The end of patience: whatever hangs, the process leaves before the orchestrator kills it."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.report import ExitCode

BACKSTOP_AFTER = 0.5
"""Seconds between the thread's turn and the backstop's."""

TELLING = 0.4
"""Seconds for the last report and the stacks: whoever reads our standard error may hang as well. Less than
`BACKSTOP_AFTER`, so that the status is the thread's."""


class HardDeadline:
    """Never disarmed: whatever follows the report, the interpreter's own end included, is bounded by it.

    A thread that writes the report with every stack and ends the process with status 70.

    Behind it stands `faulthandler`, which needs no Python: a thread cannot run while C code holds the
    interpreter lock. Its status is 1.
    """

    def __init__(self, write_report: Callable[[], None], leave: Callable[[int], None] = os._exit) -> None:
        self._write_report = write_report
        self._leave = leave
        self._thread: threading.Thread | None = None

    def arm(self, deadline: Deadline) -> None:
        """Once; `deadline` is on the clock of `time.monotonic`."""
        if self._thread is not None:
            return
        seconds = deadline.remaining(time.monotonic())
        faulthandler.dump_traceback_later(seconds + BACKSTOP_AFTER, exit=True)
        self._thread = threading.Thread(target=self._watch, args=(deadline,), name="quiesce hard deadline", daemon=True)
        self._thread.start()

    def _watch(self, deadline: Deadline) -> None:
        time.sleep(deadline.remaining(time.monotonic()))
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
            faulthandler.dump_traceback(all_threads=True)
            sys.stderr.flush()
