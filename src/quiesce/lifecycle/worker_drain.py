"""The drain of the workers: who is told to stop when, who is aborted, and who is left behind."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

from quiesce.lifecycle import commands as do
from quiesce.lifecycle.budget import HAND_BACK_BOUND, Budget
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.http_drain import HttpDrain
from quiesce.lifecycle.members import WorkerState
from quiesce.lifecycle.plan import UNWIND, Plan
from quiesce.lifecycle.watches import Watches, What

OUT_OF_TIME = "its time is over"
"""The cause of an abort at a deadline."""


@dataclass(frozen=True, slots=True)
class Abort:
    """The work in hand is given up before its bounds are over, by a second signal.

    `over`: when all of it was torn, or will be; critical sections go last.
    """

    at: float
    cause: str
    over: float


class WorkerDrain:
    """All intake closes together, before anything waits: no worker begins while another one drains. Only who waits
    for others by an edge of its own is told later."""

    def __init__(self, budget: Budget, workers: Mapping[str, WorkerState], http: HttpDrain, watches: Watches) -> None:
        self._workers = workers
        self._budget = budget
        self._http = http
        self._watches = watches
        self._looked_at = -inf

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

    def last_torn(self, aborting: float) -> float:
        """When the last of those that were told was torn, or will be; minus infinity if there is none."""
        torn = (self._torn_at(worker, aborting) for worker in self._workers.values())
        return max((at for at in torn if at is not None), default=-inf)

    def instants(self, plan: Plan, abort: Abort | None) -> Iterator[float]:
        """The instants at which time alone changes something."""
        for worker in self._workers.values():
            if worker.deadline is not None and not worker.over and not worker.aborted:
                yield worker.deadline.at
                if abort is not None and (at := self._torn_at(worker, abort.at)) is not None:
                    yield at
        if any(worker.told_at is None and not worker.over for worker in self._workers.values()):
            torn = [worker.aborted_at for worker in self._workers.values() if not worker.over]
            if not self._http.over:
                torn.append(self._http.aborted_at)
            given_up = None if abort is None else abort.over
            until = (plan.waited_for(at, given_up) for at in torn if at is not None)
            yield from (at for at in until if at > self._looked_at)

    def tell(self, now: float, plan: Plan) -> Iterator[do.Decision]:
        """Tells those that wait for nobody."""
        for worker in self._workers.values():
            yield from self._tell(worker, now, plan, None)

    def decide(self, now: float, plan: Plan, abort: Abort | None) -> Iterator[do.Decision]:
        """`abort`: if the work in hand is given up before its bounds are over."""
        self._looked_at = now
        for worker in self._workers.values():
            yield from self._tell(worker, now, plan, abort)
            if worker.over or worker.aborted:
                continue
            if worker.deadline is not None and worker.deadline.passed(now):
                yield self._abort(worker, now, OUT_OF_TIME)
            elif abort is not None and (at := self._torn_at(worker, abort.at)) is not None and now >= at:
                yield self._abort(worker, now, abort.cause)

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
                    # No time was left in which what it waits for could end.
                    worker.told_at, worker.deadline = now, Deadline(now)
                    yield do.FireStop(worker.ask.name, worker.deadline)
                if not worker.aborted:
                    yield self._abort(worker, now, OUT_OF_TIME)
                worker.outcome = "abandoned"

    def _torn_at(self, worker: WorkerState, aborting: float) -> float | None:
        """When a worker that was told was torn, or is in an abort. None: it is over, or was not told yet."""
        if worker.aborted_at is not None:
            return worker.aborted_at
        if worker.told_at is None or worker.deadline is None or worker.over:
            return None
        # What protects the work of others outlives it in an abort as well, and has a moment to end.
        patience = UNWIND if worker.ask.keeps else 0.0
        return min(max(worker.told_at, aborting) + patience, worker.deadline.at)

    def _tell(self, worker: WorkerState, now: float, plan: Plan, abort: Abort | None) -> Iterator[do.Decision]:
        if worker.told_at is None and not worker.over and self._free(worker, now, plan, abort):
            worker.told_at = now
            worker.deadline = self._deadline(worker, now, plan)
            self._watches.begin(What.WORKER, worker.ask.name, now, worker.deadline.at)
            yield do.FireStop(worker.ask.name, worker.deadline)

    def _deadline(self, worker: WorkerState, now: float, plan: Plan) -> Deadline:
        reserve = HAND_BACK_BOUND if worker.ask.hands_back else 0.0
        return plan.worker(self._budget.bound_of(worker.ask), now, reserve)

    def _free(self, worker: WorkerState, now: float, plan: Plan, abort: Abort | None) -> bool:
        """Whether this worker waits for nobody any more, so that it may be told: all that it waits for is over, or was
        torn and does not end."""
        given_up = None if abort is None else abort.over

        def gone(over: bool, aborted_at: float | None) -> bool:
            return over or (aborted_at is not None and now >= plan.waited_for(aborted_at, given_up))

        ask = worker.ask
        if ask.after_http and not (self._http.over or self._http.aborted):
            return False
        if ask.keeps == "all" and not gone(self._http.over, self._http.aborted_at):
            return False
        kept = (s for s in self._workers.values() if ask.waits_for(s.ask)) if ask.keeps else ()
        return all(gone(s.over, s.aborted_at) for s in kept)

    def _abort(self, worker: WorkerState, now: float, cause: str) -> do.AbortWorker:
        worker.aborted_at, worker.abort_cause = now, cause
        return do.AbortWorker(worker.ask.name, cause)
