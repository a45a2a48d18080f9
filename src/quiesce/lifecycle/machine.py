"""The state machine of one service, from its start to its report.

It is told what happened (`opened`, `stop`, `worker_ended`, ...) and answers, in `decide(now)`, with the
commands and events that follow. `wake_at` is the next instant at which time alone changes something.
Nothing here waits, so the order of a shutdown is a property of this file and can be tested as one.
"""

from collections.abc import Iterator

from quiesce.errors import IntakeClosed, QuiesceError, SettingsError
from quiesce.lifecycle import commands as do
from quiesce.lifecycle.budget import HAND_BACK_BOUND, Budget, WorkerBound
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import AbortRequested, Event, PartBegan, PartEnded, PhaseChanged, StopRequested
from quiesce.lifecycle.members import PartState, ResourceState, WorkerState
from quiesce.lifecycle.phases import CLOSING_ORDER, Part, Phase
from quiesce.lifecycle.plan import Plan
from quiesce.lifecycle.watches import Watches, What

Decision = do.Command | Event

OUT_OF_TIME = "its time is over"
"""The cause of an abort at a deadline."""


class Machine:
    """Decides everything about one service's life. Not thread-safe: one shell drives it."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.phase = Phase.STARTING
        self.plan: Plan | None = None
        self.reason: str | None = None
        self.failed = False
        self.workers: dict[str, WorkerState] = {}
        self.resources: dict[str, ResourceState] = {}
        self.closing_order: list[ResourceState] = []
        self.parts: dict[Part, PartState] = {}
        self._starting = True
        self._announced = False
        self._aborting: float | None = None
        self._abort_cause = ""
        self._abort_told = False
        self._sections = 0
        self._sections_aborted = False
        self._http_serving = False
        self._http_draining = False
        self._http_aborted = False
        self._http_over = True
        self._closing: ResourceState | None = None
        self._reported = False
        self._watches = Watches(self._runs_in_bound)

    # What the shell tells while the service starts.

    def register(self, ask: WorkerBound) -> None:
        """A worker that will run once the start is over.

        Raises:
            BudgetError: its bound does not fit.
            IntakeClosed: the start is over, or a stop was requested.
        """
        if ask.name in self.workers:
            raise QuiesceError(f"two workers are called {ask.name!r}; give one of them a name= of its own")
        if not self._starting or self.stopping:
            raise IntakeClosed(f"worker {ask.name!r} came too late: workers are registered by the start-up function")
        # Each for itself, where its line of the start-up function is at hand; all together in `check_workers`.
        self.budget.require([ask])
        self.workers[ask.name] = WorkerState(ask)

    def check_workers(self) -> None:
        """Refuses edges between workers that cannot be kept. Once all are registered.

        Raises:
            SettingsError: a worker keeps one that is not there, or they keep each other in a circle.
            BudgetError: the chain does not fit.
        """
        asks = {name: state.ask for name, state in self.workers.items()}
        for ask in asks.values():
            for name in ask.keeps if ask.keeps != "all" else ():
                if name not in asks:
                    raise SettingsError(f"worker {ask.name!r} keeps {name!r}, and there is no such worker")
        keepers = any(ask.keeps for ask in asks.values())
        over: set[str] = set()
        while keepers and (left := [ask for ask in asks.values() if ask.name not in over]):
            # Those that wait for nobody who is left go next; if there is none, they wait for each other.
            free = {ask.name for ask in left if not any(ask.waits_for(other) for other in left)}
            if not free:
                raise SettingsError(f"workers keep each other in a circle: {', '.join(ask.name for ask in left)}")
            over |= free
        self.budget.require(asks.values())

    def opening(self, name: str, part: Part) -> bool:
        """Whether this resource may be opened now: not once a stop is requested."""
        if self.stopping:
            return False
        if name in self.resources:
            raise QuiesceError(f"two resources are called {name!r}; give one of them a name of its own")
        self.resources[name] = ResourceState(name, part)
        return True

    def opened(self, name: str) -> None:
        self.resources[name].opened = True

    def open_failed(self, name: str) -> None:
        del self.resources[name]

    def serving(self) -> None:
        """The HTTP server listens: there is something to drain."""
        self._http_serving = True
        self._http_over = False

    def start_ended(self) -> None:
        """The start-up function has returned, failed, or ended after its interruption."""
        self._starting = False

    # What the shell tells later.

    @property
    def stopping(self) -> bool:
        return self.plan is not None

    def stop(self, now: float, reason: str, *, failed: bool = False, within: float | None = None) -> bool:
        """Requests a stop. Only the first one counts, but a failure is remembered whenever it comes."""
        self.failed = self.failed or failed
        if self.stopping:
            return False
        self.reason = reason
        self.plan = Plan.at(self.budget, now, within)
        return True

    @property
    def aborting(self) -> bool:
        """Whether the work in hand was given up before its bounds were over."""
        return self._aborting is not None

    def abort(self, now: float, reason: str) -> None:
        """Gives up the work in hand now. Closing still follows, in order."""
        self.stop(now, reason)
        if self._aborting is None:
            self._aborting = now
            self._abort_cause = reason

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
        self._sections = count

    def http_ended(self) -> None:
        self._http_over = True

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
        if self.plan is None:
            return Deadline.never()
        if self._aborting is None:
            return self.plan.drain
        return Deadline(min(self._abort_until(), self.plan.drain.at))

    @property
    def wake_at(self) -> float | None:
        """The next instant at which `decide` would say something though nothing happened."""
        if self.plan is None:
            return None
        if self._aborting is not None and self.phase is Phase.DRAINING and not self._drained():
            return min(self._abort_until(), self.plan.drain.at)
        instants: list[float] = []
        if self.phase is Phase.DRAINING or (self.phase is Phase.STARTING and self._announced):
            instants.append(self.plan.drain.at)
        if self.phase is Phase.DRAINING:
            if not self._http_over and not self._http_aborted:
                instants.append(self.plan.http.at if self._http_draining else self.plan.lame_duck.at)
            for worker in self.workers.values():
                if worker.deadline is not None and not worker.over and not worker.aborted:
                    instants.append(worker.deadline.at)
        if self._closing is not None and self._closing.deadline is not None:
            instants.append(self._closing.deadline.at)
        if (look_at := self._watches.next_at) is not None:
            instants.append(look_at)
        return min(instants, default=None)

    def decide(self, now: float) -> list[Decision]:
        """Everything that has to be done now, in order."""
        decisions = list(self._decide(now))
        decisions += [do.LookAt(what, name, share) for what, name, share in self._watches.due(now)]
        return decisions

    def _decide(self, now: float) -> Iterator[Decision]:
        if self.plan is None:
            if not self._starting and self.phase is Phase.STARTING:
                yield from self._run(now)
            return
        if not self._announced:
            yield from self._announce(now, self.plan)
        if self.phase in (Phase.STARTING, Phase.RUNNING) and (not self._starting or self.plan.drain.passed(now)):
            yield from self._begin_drain(now, self.plan)
        if self.phase is Phase.DRAINING:
            yield from self._drain(now, self.plan)
        if self.phase is Phase.CLOSING:
            yield from self._close(now, self.plan)

    def _run(self, now: float) -> Iterator[Decision]:
        self.phase = Phase.RUNNING
        for worker in self.workers.values():
            worker.running = True
        yield do.BeginWorkers()
        yield PhaseChanged(self.phase, now)
        yield do.BecomeReady()

    def _announce(self, now: float, plan: Plan) -> Iterator[Decision]:
        self._announced = True
        assert self.reason is not None
        yield do.BecomeNotReady(self.reason)
        # All intake closes together, before anything waits: no worker begins while another one drains.
        # Only who waits for others by an edge of its own is told later.
        for worker in self.workers.values():
            yield from self._tell(worker, now, plan)
        yield do.ArmHardDeadline(plan.end)
        yield StopRequested(self.reason, self.failed, now, plan.end.remaining(now), plan.scale)
        if self._starting:
            self._watches.begin(What.START, "", now, plan.drain.at)
            yield do.InterruptStart()

    def _tell(self, worker: WorkerState, now: float, plan: Plan) -> Iterator[Decision]:
        if worker.told_at is None and not worker.over and self._free(worker):
            worker.told_at = now
            reserve = HAND_BACK_BOUND if worker.ask.hands_back else 0.0
            worker.deadline = plan.worker(self.budget.bound_of(worker.ask), now, reserve)
            self._watches.begin(What.WORKER, worker.ask.name, now, worker.deadline.at)
            yield do.FireStop(worker.ask.name, worker.deadline)

    def _free(self, worker: WorkerState) -> bool:
        """Whether all that this worker waits for is over, so that it may be told and aborted."""
        ask = worker.ask
        if ask.after_http and not (self._http_over or self._http_aborted):
            return False
        if ask.keeps == "all" and not self._http_over:
            return False
        return not ask.keeps or all(s.over for s in self.workers.values() if ask.waits_for(s.ask))

    def _begin_drain(self, now: float, plan: Plan) -> Iterator[Decision]:
        self.phase = Phase.DRAINING
        self._watches.begin(What.SECTIONS, "", plan.t0, plan.drain.at)
        yield PhaseChanged(self.phase, now)
        if not self._http_over and not plan.lame_duck.passed(now):
            yield self._part_begins(Part.LAME_DUCK, now)
        yield self._part_begins(Part.WORKERS, now)

    def _drain(self, now: float, plan: Plan) -> Iterator[Decision]:
        if self._aborting is not None and not self._abort_told:
            self._abort_told = True
            yield AbortRequested(self._abort_cause, self._aborting)
        aborting = self._aborting is not None
        if not self._http_over and not self._http_draining and (aborting or plan.lame_duck.passed(now)):
            self._http_draining = True
            if self._part_is_open(Part.LAME_DUCK):
                yield self._part_ends(Part.LAME_DUCK, now)
            yield self._part_begins(Part.HTTP, now)
            self._watches.begin(What.HTTP, "", now, plan.http.at)
            yield do.BeginHttpDrain(plan.http)
        if (
            self._http_draining
            and not self._http_over
            and not self._http_aborted
            and (aborting or plan.http.passed(now))
        ):
            self._http_aborted = True
            yield do.AbortHttp()
        if self._http_over or self._http_aborted:
            if self._part_is_open(Part.LAME_DUCK):
                yield self._part_ends(Part.LAME_DUCK, now)
            if self._http_over and self._part_is_open(Part.HTTP):
                yield self._part_ends(Part.HTTP, now)
        for worker in self.workers.values():
            yield from self._tell(worker, now, plan)
            late = worker.deadline is not None and worker.deadline.passed(now)
            # What protects the work of others outlives it in an abort as well.
            if not worker.over and not worker.aborted and (late or (aborting and self._free(worker))):
                yield self._abort_worker(worker, OUT_OF_TIME if late else self._abort_cause)
        if self._drained() or plan.drain.passed(now) or (aborting and now >= self._abort_until()):
            yield from self._begin_close(now)

    def _runs_in_bound(self, what: What, name: str) -> bool:
        if what is What.CLOSER:
            return self._closing is not None and self._closing.name == name and self._closing.outcome is None
        if self._aborting is not None:
            return False
        match what:
            case What.WORKER:
                return not self.workers[name].over and not self.workers[name].aborted
            case What.HTTP:
                return not self._http_over and not self._http_aborted
            case What.SECTIONS:
                return self._sections > 0 and self.phase is Phase.DRAINING
            case _:
                return self._starting and self.phase is Phase.STARTING

    def _drained(self) -> bool:
        return self._http_over and self._sections == 0 and all(worker.over for worker in self.workers.values())

    def _abort_until(self) -> float:
        """What was aborted gets a second to unwind; after that the closers are called all the same."""
        assert self._aborting is not None
        return self._aborting + 1.0

    def _abort_worker(self, worker: WorkerState, cause: str) -> do.AbortWorker:
        worker.aborted, worker.abort_cause = True, cause
        return do.AbortWorker(worker.ask.name, cause)

    def _begin_close(self, now: float) -> Iterator[Decision]:
        for worker in self.workers.values():
            if not worker.over:
                if worker.told_at is None:
                    # A keeper: what it keeps did not end. It goes no earlier than this.
                    worker.told_at, worker.deadline = now, Deadline(now)
                    yield do.FireStop(worker.ask.name, worker.deadline)
                if not worker.aborted:
                    yield self._abort_worker(worker, OUT_OF_TIME)
                worker.outcome = "abandoned"
        if self._sections and not self._sections_aborted:
            self._sections_aborted = True
            yield do.AbortSections()
        for part in (Part.LAME_DUCK, Part.HTTP, Part.WORKERS):
            if self._part_is_open(part):
                yield self._part_ends(part, now)
        self.phase = Phase.CLOSING
        yield PhaseChanged(self.phase, now)

    def _close(self, now: float, plan: Plan) -> Iterator[Decision]:
        while True:
            current = self._closing
            if current is not None and current.outcome is None:
                if current.deadline is None or not current.deadline.passed(now):
                    return
                current.outcome, current.ended = "overran", now
                yield do.GiveUpCloser(current.name)
            self._closing = None
            for part in CLOSING_ORDER:
                if part not in self.parts:
                    yield self._part_begins(part, now)
                left = [r for r in self.resources.values() if r.opened and r.part is part and r.began is None]
                if left:
                    # Reverse order of opening: what was opened later may use what was opened earlier.
                    self._closing = current = left[-1]
                    current.began = now
                    self.closing_order.append(current)
                    current.deadline = plan.closer(self.parts[part].until, now, len(left))
                    self._watches.begin(What.CLOSER, current.name, now, current.deadline.at)
                    yield do.CloseResource(current.name, part, current.deadline)
                    break
                if self._part_is_open(part):
                    yield self._part_ends(part, now)
            if self._closing is None:
                break
        if Part.REPORT not in self.parts:
            yield self._part_begins(Part.REPORT, now)
            yield do.MakeReport(plan.end)
        if self._reported:
            self.phase = Phase.STOPPED
            yield self._part_ends(Part.REPORT, now)
            yield PhaseChanged(self.phase, now)

    def _part_begins(self, part: Part, now: float) -> PartBegan:
        assert self.plan is not None
        until = self.plan.part_from(part, now)
        if part is Part.WORKERS:
            # Their own bounds decide; the end of the drain is only where patience ends.
            until = max((w.deadline for w in self.workers.values() if w.deadline is not None), default=until)
        self.parts[part] = PartState(now, until)
        return PartBegan(part, now, until.remaining(now))

    def _part_ends(self, part: Part, now: float) -> PartEnded:
        state = self.parts[part]
        state.ended = now
        return PartEnded(part, now, state.seconds(now), state.overran(now))

    def _part_is_open(self, part: Part) -> bool:
        return part in self.parts and self.parts[part].ended is None
