"""The state machine of one service, from its start to its report.

It is told what happened (`opened`, `stop`, `worker_ended`, ...) and answers, in `decide(now)`, with the
commands and events that follow. `wake_at` is the next instant at which time alone changes something.
Nothing here waits, so the order of a shutdown is a property of this file and can be tested as one. What each
step decides stands in `http_drain`, `worker_drain`, `patience` and `closing`.
"""

from collections.abc import Iterator

from quiesce.lifecycle import commands as do
from quiesce.lifecycle.budget import Budget
from quiesce.lifecycle.closing import Closing
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import PhaseChanged, StopHastened, StopRequested
from quiesce.lifecycle.http_drain import HttpDrain
from quiesce.lifecycle.members import Members
from quiesce.lifecycle.parts import Parts
from quiesce.lifecycle.patience import Patience
from quiesce.lifecycle.phases import Part, Phase
from quiesce.lifecycle.plan import Plan
from quiesce.lifecycle.watches import Watches, What
from quiesce.lifecycle.worker_drain import WorkerDrain


class Machine:
    """Decides everything about one service's life. Not thread-safe: one shell drives it."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.phase = Phase.STARTING
        self.plan: Plan | None = None
        self.reason: str | None = None
        self.failed = False
        self._parts = Parts()
        self._watches = Watches(self._runs_in_bound)
        self._http = HttpDrain(self._parts, self._watches)
        self.members = Members(budget)
        self.workers = self.members.workers
        self.resources = self.members.resources
        self._working = WorkerDrain(budget, self.workers, self._http, self._watches)
        self._closing = Closing(self.resources, self._parts, self._watches)
        self.closing_order = self._closing.order
        self.parts = self._parts.states
        self.left_in_start: list[str] = []
        """What the closing left behind of the start: its function, and the resources that were being opened."""
        self._starting = True
        self._announced = False
        self._hastened: str | None = None
        self._patience = Patience(self._working)
        self._reported = False

    # What the shell tells while the service starts; the rest of that in `members`.

    def serving(self) -> None:
        """The HTTP server listens: there is something to drain."""
        self._http.serving()

    def start_ended(self) -> None:
        """The start-up function has returned, failed, or ended after its interruption."""
        self._starting = self.members.starting = False

    # What the shell tells later.

    @property
    def stopping(self) -> bool:
        return self.plan is not None

    def stop(self, now: float, reason: str, *, failed: bool = False, within: float | None = None) -> bool:
        """Requests a stop. Only the first one counts, but a failure is remembered whenever it comes, and of two limits
        the earlier one holds."""
        self.failed = self.failed or failed
        if self.plan is not None:
            if within is not None and self.phase is not Phase.STOPPED:
                shortened = self.plan.shortened(now, within)
                if shortened is not self.plan:
                    self.plan, self._hastened = shortened, reason
            return False
        self.reason = reason
        self.plan = Plan.at(self.budget, now, within)
        self.members.stopping = True
        return True

    @property
    def aborting(self) -> bool:
        """Whether the work in hand was given up before its bounds were over."""
        return self._patience.aborting is not None

    def abort(self, now: float, reason: str) -> None:
        """Gives up the work in hand now. Closing still follows, in order."""
        self.stop(now, reason)
        self._patience.abort(now, reason)

    def worker_ended(
        self, name: str, now: float, error: str | None = None, *, torn: bool = True, handed_back: bool = False
    ) -> None:
        """A worker's `run` is over. With an error, unless it was aborted, the service has failed.

        Args:
            torn: False where an abort could not tear it, as with a thread: it has finished, if late.
            handed_back: it was torn, and what it had in hand was put back.
        """
        worker = self.workers[name]
        if worker.outcome is not None:
            return  # abandoned: it comes after the closing began, and the report may be written
        if worker.end(now, error, torn=torn, handed_back=handed_back) == "failed":
            self.stop(now, f"worker {name} failed: {error}", failed=True)

    def sections_open(self, count: int) -> None:
        """How many critical sections are open now."""
        self._patience.sections = count

    def http_ended(self) -> None:
        self._http.ended()

    def closed(self, name: str, now: float, outcome: str, undelivered: int = 0, detail: str = "") -> None:
        """A closer came back: `clean`, `forced` or `failed`. Too late, it changes nothing."""
        resource = self.resources[name]
        if resource.outcome is None:
            resource.outcome, resource.undelivered, resource.detail = outcome, undelivered, detail
            resource.ended = now

    def reported(self) -> None:
        self._reported = True

    # What the shell asks.

    @property
    def sections_until(self) -> Deadline:
        """When critical sections that are still open are aborted."""
        return Deadline.never() if self.plan is None else self._patience.sections_until(self.plan)

    @property
    def wake_at(self) -> float | None:
        """The next instant at which `decide` would say something though nothing happened."""
        if self.plan is None:
            return None
        instants: list[float | None] = [self._closing.next_at, self._watches.next_at]
        if self.phase is Phase.DRAINING or (self.phase is Phase.STARTING and self._announced):
            instants += self._patience.instants(self.plan)
        if self.phase is Phase.DRAINING:
            instants += [
                self._http.next_at(self.plan),
                *self._working.instants(self.plan, self._patience.aborted(self.plan)),
            ]
        return min((at for at in instants if at is not None), default=None)

    def decide(self, now: float) -> list[do.Decision]:
        """Everything that has to be done now, in order."""
        decisions = list(self._decide(now))
        decisions += [do.LookAt(what, name, share) for what, name, share in self._watches.due(now)]
        return decisions

    def _decide(self, now: float) -> Iterator[do.Decision]:
        if self.plan is None:
            if not self._starting and self.phase is Phase.STARTING:
                yield from self._run(now)
            return
        if not self._announced:
            yield from self._announce(now, self.plan)
        elif self._hastened is not None:
            yield from self._hasten(now, self.plan, self._hastened)
        self._hastened = None
        if self.phase in (Phase.STARTING, Phase.RUNNING, Phase.DRAINING):
            yield from self._patience.decide(now, self.plan, starting=self._start_in_hand())
        in_time = now < self._patience.ends(self.plan)
        if self.phase in (Phase.STARTING, Phase.RUNNING) and not (self._starting and in_time):
            yield from self._begin_drain(now, self.plan)
        elif self.phase is Phase.STARTING:
            yield from self._patience.tear_sections(now, self.plan)
        if self.phase is Phase.DRAINING:
            yield from self._drain(now, self.plan)
        if self.phase is Phase.CLOSING:
            yield from self._close(now, self.plan)

    def _run(self, now: float) -> Iterator[do.Decision]:
        self.phase = Phase.RUNNING
        for worker in self.workers.values():
            worker.running = True
        yield do.BeginWorkers()
        yield PhaseChanged(self.phase, now)
        yield do.BecomeReady()

    def _announce(self, now: float, plan: Plan) -> Iterator[do.Decision]:
        self._announced = True
        assert self.reason is not None
        yield do.BecomeNotReady(self.reason)
        yield from self._working.tell(now, plan)
        yield do.ArmHardDeadline(plan.end)
        yield StopRequested(self.reason, self.failed, now, plan.end.remaining(now), plan.scale)
        if self._start_in_hand():
            self._watches.begin(What.START, "", now, plan.drain.at)
            yield do.InterruptStart()

    def _hasten(self, now: float, plan: Plan, reason: str) -> Iterator[do.Decision]:
        yield do.ArmHardDeadline(plan.end)
        yield StopHastened(reason, now, plan.end.remaining(now), plan.scale)
        yield from self._working.shorten(now, plan)
        yield from self._http.shorten(plan)
        self._parts.shorten(plan)
        self._closing.shorten(now, plan)

    def _start_in_hand(self) -> bool:
        return self._starting or bool(self.members.in_opening)

    def _begin_drain(self, now: float, plan: Plan) -> Iterator[do.Decision]:
        self.phase = Phase.DRAINING
        self._watches.begin(What.SECTIONS, "", plan.t0, plan.abort.at)
        yield PhaseChanged(self.phase, now)
        yield from self._http.begin(now, plan)
        # Their own bounds decide; the end of the drain is only where patience ends.
        yield self._parts.begin(Part.WORKERS, now, self._working.until or plan.drain)

    def _drain(self, now: float, plan: Plan) -> Iterator[do.Decision]:
        yield from self._http.decide(now, plan, aborting=self.aborting)
        yield from self._working.decide(now, plan, self._patience.aborted(plan))
        yield from self._patience.tear_sections(now, plan)
        if self._drained() or now >= self._patience.ends(plan):
            yield from self._begin_close(now, plan)

    def _runs_in_bound(self, what: What, name: str) -> bool:
        if what is What.CLOSER:
            return self._closing.runs(name)
        if self.aborting:
            return False
        match what:
            case What.WORKER:
                return not self.workers[name].over and not self.workers[name].aborted
            case What.HTTP:
                return self._http.runs
            case What.SECTIONS:
                told = self._patience.sections_aborted is not None
                return self._patience.sections > 0 and not told and self.phase is Phase.DRAINING
            case _:
                return self._start_in_hand() and self.phase in (Phase.STARTING, Phase.DRAINING)

    def _drained(self) -> bool:
        return self._http.over and self._patience.sections == 0 and self._working.over and not self._start_in_hand()

    def _begin_close(self, now: float, plan: Plan) -> Iterator[do.Decision]:
        if self._start_in_hand():
            self.left_in_start = [*(["start"] if self._starting else []), *self.members.in_opening]
            yield do.LookAt(What.START, "", 1.0)
        yield from self._working.leave(now)
        yield from self._patience.tear_sections(now, plan, at_once=True)
        for part in (Part.LAME_DUCK, Part.HTTP, Part.WORKERS):
            if self._parts.under_way(part):
                yield self._parts.end(part, now)
        self.phase = Phase.CLOSING
        yield PhaseChanged(self.phase, now)

    def _close(self, now: float, plan: Plan) -> Iterator[do.Decision]:
        closed = yield from self._closing.decide(now, plan)
        if not closed:
            return
        if not self._parts.began(Part.REPORT):
            yield self._parts.begin(Part.REPORT, now, plan.part_from(Part.REPORT, now))
            yield do.MakeReport(plan.end)
        if self._reported:
            self.phase = Phase.STOPPED
            yield self._parts.end(Part.REPORT, now)
            yield PhaseChanged(self.phase, now)
