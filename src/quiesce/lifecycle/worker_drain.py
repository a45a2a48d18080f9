"""The drain of the workers: who is told to stop when, who is aborted, and who is left behind."""

from collections.abc import Iterator, Mapping

from quiesce.lifecycle import commands as do
from quiesce.lifecycle.budget import HAND_BACK_BOUND, Budget
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.http_drain import HttpDrain
from quiesce.lifecycle.members import WorkerState
from quiesce.lifecycle.plan import Plan
from quiesce.lifecycle.watches import Watches, What

OUT_OF_TIME = "its time is over"
"""The cause of an abort at a deadline."""


class WorkerDrain:
    """All intake closes together, before anything waits: no worker begins while another one drains. Only who waits
    for others by an edge of its own is told later."""

    def __init__(self, budget: Budget, workers: Mapping[str, WorkerState], http: HttpDrain, watches: Watches) -> None:
        self._workers = workers
        self._budget = budget
        self._http = http
        self._watches = watches

    @property
    def over(self) -> bool:
        return all(worker.over for worker in self._workers.values())

    @property
    def until(self) -> Deadline | None:
        """The latest of the deadlines of those that were told; None if none was."""
        return max((w.deadline for w in self._workers.values() if w.deadline is not None), default=None)

    @property
    def last_deadline(self) -> Deadline | None:
        """That of the last one that was told and is not over."""
        told = (w.deadline for w in self._workers.values() if w.deadline is not None and not w.over)
        return max(told, default=None)

    def instants(self) -> Iterator[float]:
        """The instants at which time alone changes something."""
        for worker in self._workers.values():
            if worker.deadline is not None and not worker.over and not worker.aborted:
                yield worker.deadline.at

    def tell(self, now: float, plan: Plan) -> Iterator[do.Decision]:
        """Tells those that wait for nobody."""
        for worker in self._workers.values():
            yield from self._tell(worker, now, plan)

    def decide(self, now: float, plan: Plan, abort_cause: str | None) -> Iterator[do.Decision]:
        """`abort_cause`: why the work in hand is given up now, if it is."""
        for worker in self._workers.values():
            yield from self._tell(worker, now, plan)
            late = worker.deadline is not None and worker.deadline.passed(now)
            # What protects the work of others outlives it in an abort as well.
            torn = abort_cause is not None and self._free(worker)
            if not worker.over and not worker.aborted and (late or torn):
                yield self._abort(worker, OUT_OF_TIME if late or abort_cause is None else abort_cause)

    def shorten(self, now: float, plan: Plan) -> Iterator[do.Decision]:
        """Less time is left than those were told that were told."""
        for worker in self._workers.values():
            if worker.deadline is not None and not worker.over and not worker.aborted:
                deadline = self._deadline(worker, now, plan)
                if deadline < worker.deadline:
                    worker.deadline = deadline
                    self._watches.begin(What.WORKER, worker.ask.name, now, deadline.at)
                    yield do.ShortenBound(worker.ask.name, deadline)

    def leave(self, now: float) -> Iterator[do.Decision]:
        """Closing begins: who still runs is left behind."""
        for worker in self._workers.values():
            if not worker.over:
                if worker.told_at is None:
                    # A keeper: what it keeps did not end. It goes no earlier than this.
                    worker.told_at, worker.deadline = now, Deadline(now)
                    yield do.FireStop(worker.ask.name, worker.deadline)
                if not worker.aborted:
                    yield self._abort(worker, OUT_OF_TIME)
                worker.outcome = "abandoned"

    def _tell(self, worker: WorkerState, now: float, plan: Plan) -> Iterator[do.Decision]:
        if worker.told_at is None and not worker.over and self._free(worker):
            worker.told_at = now
            worker.deadline = self._deadline(worker, now, plan)
            self._watches.begin(What.WORKER, worker.ask.name, now, worker.deadline.at)
            yield do.FireStop(worker.ask.name, worker.deadline)

    def _deadline(self, worker: WorkerState, now: float, plan: Plan) -> Deadline:
        reserve = HAND_BACK_BOUND if worker.ask.hands_back else 0.0
        return plan.worker(self._budget.bound_of(worker.ask), now, reserve)

    def _free(self, worker: WorkerState) -> bool:
        """Whether all that this worker waits for is over, so that it may be told and aborted."""
        ask = worker.ask
        if ask.after_http and not (self._http.over or self._http.aborted):
            return False
        if ask.keeps == "all" and not self._http.over:
            return False
        return not ask.keeps or all(s.over for s in self._workers.values() if ask.waits_for(s.ask))

    def _abort(self, worker: WorkerState, cause: str) -> do.AbortWorker:
        worker.aborted, worker.abort_cause = True, cause
        return do.AbortWorker(worker.ask.name, cause)
