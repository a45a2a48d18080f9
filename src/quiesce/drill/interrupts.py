"""Ctrl-C and SIGTERM while a drill runs: the first ends it in order, the second at once, the third instantly."""

import asyncio
import os
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEBOUNCE = 0.3


class Interrupts:
    """Takes the signals of this process from `install` on.

    `stop` is set by the first one. The second cancels the task that called `install`; what that task closes
    on its way out is quick. The third leaves without closing anything: the guard of each process that was
    started ends it then.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.last = 0
        """The number of the last signal, 0 before the first."""
        self._seen = 0
        self._at = 0.0

    def install(self) -> None:
        """To be called from the task that the second signal cancels."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        for number in SIGNALS:
            # Started by nohup, a hang-up is to be ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._signalled, number)

    def remove(self) -> None:
        """From now on the signals do what they do by default."""
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)

    def _signalled(self, number: int) -> None:
        now = self._loop.time()
        # One stop often comes as two signals, from the terminal and from `make`.
        if self._seen and now - self._at < _DEBOUNCE:
            return
        self._seen += 1
        self._at = now
        self.last = number
        if self._seen == 1:
            self.stop.set()
        elif self._seen == 2:
            assert self._task is not None
            self._task.cancel()
        else:
            os._exit(128 + number)
