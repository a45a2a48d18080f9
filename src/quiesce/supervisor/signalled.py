"""What the steps of the signal ladder mean for one service, and the hard deadline that they arm."""

import asyncio
import signal
from collections.abc import Callable

from quiesce.lifecycle import events as ev
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.plan import Plan
from quiesce.supervisor.hard_deadline import HardDeadline
from quiesce.supervisor.telling import Telling


class Signalled:
    """The first step stops, each further one aborts.

    Args:
        write_late: writes the report as far as it goes, on the thread of the hard deadline.
        turn: is called behind each step.
        own_process: whether there is a hard deadline.
    """

    def __init__(
        self,
        machine: Machine,
        telling: Telling,
        write_late: Callable[[], None],
        turn: Callable[[], None],
        *,
        own_process: bool,
    ) -> None:
        self._machine = machine
        self._telling = telling
        self._write_late = write_late
        self._turn = turn
        self._now = asyncio.get_running_loop().time
        self._hard_deadline = HardDeadline(self._run_late) if own_process else None
        self._told_at: float | None = None
        self._steps = 0

    def arm(self, at: float) -> None:
        """Arms the hard deadline of a stop requested at `at`. In the handler of the first signal: what hangs the
        loop cannot keep us from it. The stop itself is decided on the loop."""
        self._told_at = at
        self.arm_until(Plan.at(self._machine.budget, at).end)

    def arm_until(self, deadline: Deadline) -> None:
        if self._hard_deadline is not None:
            self._hard_deadline.arm(deadline)

    def step(self, step: int, number: int) -> None:
        if step <= self._steps:
            return
        self._steps = step
        name = signal.Signals(number).name
        self._telling.tell(ev.SignalReceived(number, name))
        if step == 1:
            # T0 is the instant of the handler; the loop may have been blocked since.
            now = self._now()
            self._machine.stop(now if self._told_at is None else min(now, self._told_at), f"received {name}")
        else:
            self._machine.abort(self._now(), f"received {name} again")
        self._turn()

    def _run_late(self) -> None:
        if not self._machine.stopping and self._told_at is not None:
            self._machine.stop(self._told_at, "received a signal, and the event loop was blocked")
        self._write_late()
