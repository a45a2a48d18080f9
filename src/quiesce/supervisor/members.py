"""A worker while it runs: its terms, its token, its task, and why the task was cancelled."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from quiesce.errors import SettingsError
from quiesce.lifecycle.budget import WorkerBound
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import OnDrain, Worker
from quiesce.lifecycle.restart import Restart
from quiesce.supervisor.stop import StopToken


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the service lays down for a worker. None: as the worker itself says, or the default."""

    name: str | None = None
    bound: float | None = None
    on_drain: OnDrain | None = None
    after: str | None = None
    keeps: str | Sequence[str] | None = None
    restart: Restart | None = None
    hand_back: Callable[[], object] | None = None

    def for_worker(self, worker: Worker) -> "Terms":
        """Filled up with the worker's own attributes of the same names.

        Raises:
            SettingsError: a term that no service could keep.
        """
        own = {name: getattr(worker, name, None) for name in ("bound", "on_drain", "after", "keeps", "restart")}
        missing = {name: value for name, value in own.items() if getattr(self, name) is None and value is not None}
        terms = replace(self, name=self.name or worker.name, **missing)
        if terms.name == "all":
            raise SettingsError("worker 'all': name: got 'all', which means every worker in keeps=")
        if terms.after not in (None, "http"):
            raise SettingsError(f"worker {terms.name!r}: after: got {terms.after!r}, takes 'http' or None")
        if never_torn(worker) and (terms.on_drain == "cancel" or terms.hand_back is not None):
            what = "on_drain: got 'cancel'" if terms.on_drain == "cancel" else "hand_back: got a function"
            raise SettingsError(f"worker {terms.name!r}: {what}, but it is a thread, and nothing tears a thread")
        return terms

    def ask(self) -> WorkerBound:
        """What it asks of the budget."""
        keeps: tuple[str, ...] = (self.keeps,) if isinstance(self.keeps, str) else tuple(self.keeps or ())
        return WorkerBound(
            self.name or "",
            self.bound,
            self.after == "http",
            "all" if "all" in keeps else keeps,
            self.hand_back is not None,
        )


def never_torn(worker: Worker) -> bool:
    """Whether an abort cannot reach it: a thread."""
    return bool(getattr(worker, "never_torn", False))


@dataclass(slots=True)
class RunningWorker:
    """`task` runs the worker's `run`: its stack shows where the worker is. None before it began."""

    worker: Worker
    token: StopToken
    on_drain: OnDrain
    restart: Restart | None = None
    hand_back: Callable[[], object] | None = None
    task: asyncio.Task[BaseException | None] | None = None
    cancelled: bool = False
    torn_in_hand: bool = False
    """It was cancelled with an iteration in hand, as far as its token knows."""

    def told_to_stop(self, reason: str, deadline: Deadline) -> None:
        """Closes its intake; where the iteration in hand may be torn, tears it."""
        self.token.fire(reason, deadline)
        if self.on_drain == "cancel":
            self._cancel(f"stop requested: {reason}")

    def abort(self, cause: str) -> None:
        """Tears it. A thread cannot be torn: it is told, and left where it is when the closing begins."""
        if never_torn(self.worker):
            self.token.abort(cause)
        else:
            self._cancel(cause)

    def _cancel(self, cause: str) -> None:
        # Said first, and carried by the cancel itself, so that no handler takes it for a failure of its own.
        self.token.abort(cause)
        self.cancelled = True
        if self.task is not None and not self.task.done():
            # One that never asked its token may have something in hand at any time.
            self.torn_in_hand = self.torn_in_hand or bool(self.token.in_hand()) or not self.token.begun
            self.task.cancel(cause)
