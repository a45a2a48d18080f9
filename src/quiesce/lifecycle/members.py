"""The workers and resources that a service's start-up function brings, and what is remembered of each."""

from dataclasses import dataclass

from quiesce.errors import IntakeClosed, QuiesceError, StartInterrupted
from quiesce.lifecycle.budget import Budget, WorkerBound
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.worker_edges import check_edges


@dataclass(slots=True)
class WorkerState:
    """`told_at`: when its token fired; `aborted_at`: when it was torn. `outcome` is None while it runs.

    It is `finished`, `failed`, `aborted` (torn), `handed back` (torn, and its work was put back), or
    `abandoned` (it still ran when the closing began).
    """

    ask: WorkerBound
    running: bool = False
    told_at: float | None = None
    deadline: Deadline | None = None
    aborted_at: float | None = None
    abort_cause: str | None = None
    outcome: str | None = None
    error: str | None = None
    seconds: float | None = None

    @property
    def over(self) -> bool:
        return self.outcome is not None or not self.running

    @property
    def aborted(self) -> bool:
        return self.aborted_at is not None

    def end(self, now: float, error: str | None, *, torn: bool, handed_back: bool) -> str:
        if self.aborted and torn:
            self.outcome = "handed back" if handed_back else "aborted"
        else:
            self.outcome = "finished" if error is None else "failed"
        self.error = error
        if self.told_at is not None:
            self.seconds = now - self.told_at
        return self.outcome


@dataclass(slots=True)
class ResourceState:
    """`opened` stays False for one whose opening failed: it is never closed."""

    name: str
    part: Part
    opened: bool = False
    began: float | None = None
    ended: float | None = None
    deadline: Deadline | None = None
    outcome: str | None = None
    undelivered: int = 0
    detail: str = ""


class Members:
    """Takes them while the service starts.

    `starting`: the start-up function runs. `stopping`: a stop was requested; nothing is taken from then on.
    """

    def __init__(self, budget: Budget) -> None:
        self.workers: dict[str, WorkerState] = {}
        self.resources: dict[str, ResourceState] = {}
        self.starting = True
        self.stopping = False
        self._budget = budget

    def register(self, ask: WorkerBound) -> None:
        """A worker that will run once the start is over.

        Raises:
            BudgetError: its bound does not fit.
            StartInterrupted: a stop was requested while the service was starting.
            IntakeClosed: the start is over.
        """
        if self.starting and self.stopping:
            raise StartInterrupted(f"worker {ask.name!r} is not registered: a stop was requested")
        if ask.name in self.workers:
            raise QuiesceError(f"two workers are called {ask.name!r}; give one of them a name= of its own")
        if not self.starting:
            raise IntakeClosed(f"worker {ask.name!r} came too late: workers are registered by the start-up function")
        # Each for itself, where its line of the start-up function is at hand; all together in `check_workers`.
        self._budget.require([ask])
        self.workers[ask.name] = WorkerState(ask)

    def check_workers(self) -> None:
        """Refuses edges between workers that cannot be kept. Once all are registered.

        Raises:
            SettingsError: a worker keeps one that is not there, or they keep each other in a circle.
            BudgetError: the chain does not fit.
        """
        asks = {name: state.ask for name, state in self.workers.items()}
        check_edges(asks)
        self._budget.require(asks.values())

    def opening(self, name: str, part: Part) -> bool:
        """Whether this resource may be opened now: not once a stop is requested."""
        if self.stopping:
            return False
        if name in self.resources:
            raise QuiesceError(f"two resources are called {name!r}; give one of them a name of its own")
        self.resources[name] = ResourceState(name, part)
        return True

    @property
    def in_opening(self) -> list[str]:
        """The resources whose opening has begun and is not over."""
        return [name for name, resource in self.resources.items() if not resource.opened]

    def opened(self, name: str) -> None:
        self.resources[name].opened = True

    def open_failed(self, name: str) -> None:
        del self.resources[name]
