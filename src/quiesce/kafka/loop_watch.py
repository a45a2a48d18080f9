"""A loop that is blocked while partitions have to go: nobody can tear its handlers, which would go on beside the next
owner's. Then the process ends.

Whatever bounds a handler is a timer of its loop. A handler that blocks the loop (`time.sleep`, a driver that is not
async) holds them all up, and only another thread notices.
"""

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable

from quiesce.kafka.blocking import on_loop

_LOG = logging.getLogger("quiesce.kafka")

_LOOKS = 50
_LOOK = 0.1
"""Five seconds in so many looks: after a stop of the whole process (SIGSTOP, a sleeping machine) the loop gets its turn
between two of them."""

_TELL_BOUND = 1.0
"""Seconds for the log to say so. The next owner begins meanwhile, so the process ends whether or not it could."""


class LoopWatch:
    """Made on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, leave: Callable[[int], None] = os._exit) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._leave = leave

    def ask(self) -> threading.Event:
        """Set once the loop has had a turn."""
        turned = threading.Event()
        on_loop(self._loop, turned.set)
        return turned

    def end_if_blocked(self, turned: threading.Event, why: str) -> None:
        """Gives the loop five seconds more for a turn. Without one the process ends here, with status 1."""
        for _ in range(_LOOKS):
            if turned.wait(_LOOK) or self._loop.is_closed():
                return
        frame = sys._current_frames().get(self._thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "no stack\n"
        # In a thread of its own: what blocks the loop may hold the lock of a log handler, or stand in a full pipe.
        telling = threading.Thread(target=_tell, args=(why, stack), daemon=True)
        telling.start()
        telling.join(_TELL_BOUND)
        self._leave(1)


def _tell(why: str, stack: str) -> None:
    _LOG.critical("%s; the event loop is blocked: nothing can be torn, so the process ends. At:\n%s", why, stack)
    for handler in logging.getLogger().handlers:
        handler.flush()
