"""A worker while it runs: its token, its task, and why the task was cancelled."""

import asyncio
from dataclasses import dataclass

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import OnDrain, Worker
from quiesce.supervisor.stop import StopToken


@dataclass(slots=True)
class RunningWorker:
    worker: Worker
    token: StopToken
    on_drain: OnDrain
    task: asyncio.Task[None] | None = None
    cancelled: bool = False

    def told_to_stop(self, reason: str, deadline: Deadline) -> None:
        """Closes its intake; where the iteration in hand may be torn, tears it."""
        self.token.fire(reason, deadline)
        if self.on_drain == "cancel":
            self._cancel(f"stop requested: {reason}")

    def abort(self) -> None:
        self._cancel("its time is over; the work in hand is abandoned")

    def _cancel(self, cause: str) -> None:
        # The cause travels with the cancel, so that no handler takes an abort for a failure of its own.
        self.cancelled = True
        if self.task is not None:
            self.task.cancel(cause)
