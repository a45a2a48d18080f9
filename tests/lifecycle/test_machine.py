"""Whole shutdowns, played in virtual time: whatever happens when, the order of the machine holds."""

import heapq
import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiesce.errors import BudgetError, IntakeClosed
from quiesce.lifecycle import commands as do
from quiesce.lifecycle.budget import Budget, WorkerBound
from quiesce.lifecycle.events import PartBegan, PartEnded, PhaseChanged
from quiesce.lifecycle.machine import Decision, Machine
from quiesce.lifecycle.phases import Part, Phase
from quiesce.lifecycle.report import compose

BUDGET = Budget()
# Room for a worker that comes after HTTP and takes the default bound.
ROOMY = Budget(http=12)

# Some end at once, some in time, some late, some never.
durations = st.one_of(st.just(0.0), st.floats(0.001, 5), st.floats(10, 40), st.just(float("inf")))


@dataclass(frozen=True)
class WorkerPlan:
    bound: float | None
    after_http: bool
    ends_after_stop: float
    ends_after_abort: float
    crashes_at: float | None


@dataclass(frozen=True)
class Life:
    """What the world does in one life of a service. Instants are seconds from the start."""

    opens: list[tuple[Part, float]]
    start_ends: float
    ignores_interrupt: bool
    http: bool
    http_ends: float
    http_ends_after_abort: float
    workers: list[WorkerPlan]
    closers: list[float]
    stop_at: float
    second_signal: float | None
    sections: list[tuple[float, float]]


worker_plans = st.builds(
    WorkerPlan,
    bound=st.one_of(st.none(), st.floats(0.1, 5)),
    after_http=st.booleans(),
    ends_after_stop=durations,
    ends_after_abort=durations,
    crashes_at=st.one_of(st.none(), st.floats(0, 3)),
)

lives = st.builds(
    Life,
    opens=st.lists(st.tuples(st.sampled_from([Part.PRODUCERS, Part.POOLS]), st.floats(0, 1)), max_size=5),
    start_ends=st.floats(0, 2),
    ignores_interrupt=st.booleans(),
    http=st.booleans(),
    http_ends=durations,
    http_ends_after_abort=durations,
    workers=st.lists(worker_plans, max_size=4),
    closers=st.lists(durations, min_size=5, max_size=5),
    stop_at=st.floats(0, 4),
    second_signal=st.one_of(st.none(), st.floats(0, 30)),
    sections=st.lists(st.tuples(st.floats(0, 4), durations), max_size=2),
)


@dataclass
class World:
    """Plays a life: does what the machine decides, and tells it the outcome at the instant the life says."""

    life: Life
    machine: Machine = field(default_factory=lambda: Machine(ROOMY))
    within: float | None = None
    now: float = 0.0
    log: list[tuple[float, Decision]] = field(default_factory=list)
    began: list[tuple[float, str]] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    _queue: list[tuple[float, int, str, tuple[object, ...]]] = field(default_factory=list)
    _count: "itertools.count[int]" = field(default_factory=itertools.count)
    _ended: set[str] = field(default_factory=set)
    _running: bool = False
    _start_over: bool = False

    def at(self, when: float, act: str, *args: object) -> None:
        if when != float("inf"):
            heapq.heappush(self._queue, (when, next(self._count), act, args))

    def play(self) -> None:
        life = self.life
        for index, worker in enumerate(life.workers):
            self.machine.register(WorkerBound(f"w{index}", worker.bound, worker.after_http))
        for index, (part, when) in enumerate(life.opens):
            self.at(when, "open", f"r{index}", part)
        if life.http:
            self.machine.serving()
        self.at(max([life.start_ends, *(when for _, when in life.opens)]), "start_ended")
        self.at(life.stop_at, "stop")
        if life.second_signal is not None:
            self.at(life.stop_at + life.second_signal, "abort")
        for begins, lasts in life.sections:
            self.at(begins, "section", lasts)
        for _ in range(10_000):
            for decision in self.machine.decide(self.now):
                self.log.append((self.now, decision))
                self._perform(decision)
            if self.machine.phase is Phase.STOPPED:
                return
            wake = self.machine.wake_at
            upcoming = [t for t in (wake, self._queue[0][0] if self._queue else None) if t is not None]
            assert upcoming, "the machine waits for nothing that will ever come: it hangs"
            self.now = max(self.now, min(upcoming))
            if self._queue and self._queue[0][0] <= self.now:
                _, _, act, args = heapq.heappop(self._queue)
                getattr(self, f"_do_{act}")(*args)
        raise AssertionError("the machine goes round without an end")

    def _perform(self, decision: Decision) -> None:
        match decision:
            case do.BeginWorkers():
                self._running = True
                for index, worker in enumerate(self.life.workers):
                    if worker.crashes_at is not None:
                        self.at(self.now + worker.crashes_at, "worker_ended", f"w{index}", "crash")
            case do.FireStop(worker=name):
                self.at(self.now + self.life.workers[int(name[1:])].ends_after_stop, "worker_ended", name, None)
            case do.AbortWorker(worker=name):
                self.at(self.now + self.life.workers[int(name[1:])].ends_after_abort, "worker_ended", name, None)
            case do.BeginHttpDrain():
                self.at(self.now + self.life.http_ends, "http_ended")
            case do.AbortHttp():
                self.at(self.now + self.life.http_ends_after_abort, "http_ended")
            case do.InterruptStart() if not self.life.ignores_interrupt:
                self.at(self.now, "start_ended")
            case do.CloseResource(resource=name):
                self.at(self.now + self.life.closers[int(name[1:])], "closed", name)
            case do.MakeReport():
                self.at(self.now, "reported")

    def _do_open(self, name: str, part: Part) -> None:
        if not self._start_over and self.machine.opening(name, part):
            self.machine.opened(name)
            self.opened.append(name)

    def _do_start_ended(self) -> None:
        self._start_over = True
        self.machine.start_ended()

    def _do_stop(self) -> None:
        self.machine.stop(self.now, "signal", within=self.within)

    def _do_abort(self) -> None:
        if self.machine.phase is not Phase.STOPPED:
            self.machine.abort(self.now, "second signal")

    def _do_section(self, lasts: float) -> None:
        if self.machine.phase in (Phase.RUNNING, Phase.DRAINING):
            self.machine.section_began()
            self.at(self.now + lasts, "section_ended")

    def _do_section_ended(self) -> None:
        self.machine.section_ended()

    def _do_worker_ended(self, name: str, error: str | None) -> None:
        if name not in self._ended and self.machine.workers[name].running:
            self._ended.add(name)
            self.machine.worker_ended(name, self.now, error)

    def _do_http_ended(self) -> None:
        self.machine.http_ended()

    def _do_closed(self, name: str) -> None:
        self.machine.closed(name, self.now, "clean")

    def _do_reported(self) -> None:
        self.machine.reported()

    def of(self, kind: type) -> list[tuple[float, Decision]]:
        return [(when, decision) for when, decision in self.log if isinstance(decision, kind)]


def _index(world: World, kind: type) -> list[int]:
    return [index for index, (_, decision) in enumerate(world.log) if isinstance(decision, kind)]


@settings(max_examples=1500, deadline=None)
@given(lives)
def test_every_life_keeps_the_order(life: Life) -> None:
    world = World(life)
    world.play()
    machine, log = world.machine, world.log
    plan = machine.plan
    assert plan is not None

    # It ends before the hard deadline, whatever hangs.
    assert world.now <= plan.end.at + 1e-9

    # Not ready comes first, before any token, and all intake closes in the same instant.
    not_ready = _index(world, do.BecomeNotReady)
    assert len(not_ready) == 1
    fired = _index(world, do.FireStop)
    assert all(index > not_ready[0] for index in fired)
    for _when, decision in world.of(do.FireStop):
        assert isinstance(decision, do.FireStop)
        if not machine.workers[decision.worker].ask.after_http:
            assert machine.workers[decision.worker].told_at == log[not_ready[0]][0]

    # Nothing begins after the stop: neither workers nor readiness nor an opening.
    for kind in (do.BeginWorkers, do.BecomeReady):
        assert all(index < not_ready[0] for index in _index(world, kind))

    # Every opened resource is closed once, none other, in reverse within its part, producers first.
    closed = [d for _, d in log if isinstance(d, do.CloseResource)]
    assert sorted(d.resource for d in closed) == sorted(world.opened)
    for part in (Part.PRODUCERS, Part.POOLS):
        names = [d.resource for d in closed if d.part is part]
        assert names == [name for name in reversed(world.opened) if machine.resources[name].part is part]
    assert [d.part for d in closed] == sorted((d.part for d in closed), key=[Part.PRODUCERS, Part.POOLS].index)

    # No closer while a worker, a request or a section runs, unless the time for them is over.
    if closed:
        began = next(when for when, d in log if isinstance(d, do.CloseResource))
        in_time = began < plan.drain.at and life.second_signal is None
        if in_time:
            assert all(worker.over and worker.outcome != "abandoned" for worker in machine.workers.values())
            assert life.http is False or any(d.part is Part.HTTP for _, d in log if isinstance(d, PartEnded))
    # Each closer has a share of the time that was reserved, even behind one that overran.
    for when, decision in world.of(do.CloseResource):
        assert isinstance(decision, do.CloseResource)
        assert decision.deadline.at > when
        assert decision.deadline.at <= plan.pools.at + 1e-9

    # Phases only go forward; parts end once and in their order.
    phases = [d.phase for _, d in log if isinstance(d, PhaseChanged)]
    assert phases == sorted(phases, key=list(Phase).index)
    assert phases[-1] is Phase.STOPPED
    begun = [d.part for _, d in log if isinstance(d, PartBegan)]
    ended = [d.part for _, d in log if isinstance(d, PartEnded)]
    assert sorted(begun) == sorted(ended)
    assert len(set(ended)) == len(ended)
    assert [part for part in ended if part in (Part.PRODUCERS, Part.POOLS, Part.REPORT)] == [
        Part.PRODUCERS,
        Part.POOLS,
        Part.REPORT,
    ]

    # The report says what happened.
    report = compose("service", machine, world.now)
    crashed = any(worker.outcome == "failed" for worker in machine.workers.values())
    left = any(worker.outcome in ("aborted", "abandoned") for worker in machine.workers.values())
    left = left or any(resource.outcome == "overran" for resource in machine.resources.values())
    assert report.exit_code == (1 if crashed else 75 if left else 0)
    assert [r.resource for r in report.resources] == [d.resource for d in closed]


@settings(max_examples=300, deadline=None)
@given(lives.filter(lambda life: life.second_signal is None), st.floats(0.1, 40))
def test_when_less_time_is_left_everything_shrinks(life: Life, within: float) -> None:
    quiet = [replace(worker, crashes_at=None) for worker in life.workers]
    world = World(replace(life, workers=quiet), within=within)
    world.play()
    assert world.now <= life.stop_at + min(within, ROOMY.available) + 1e-9


def _stopped(machine: Machine, now: float = 0.0) -> list[Decision]:
    machine.start_ended()
    machine.decide(now)
    machine.stop(now, "signal")
    return machine.decide(now)


def test_readiness_is_the_first_command_of_a_shutdown() -> None:
    machine = Machine(BUDGET)
    machine.register(WorkerBound("a"))
    machine.serving()
    assert isinstance(_stopped(machine)[0], do.BecomeNotReady)


def test_a_worker_after_http_is_told_when_the_drain_is_over_and_its_bound_starts_there() -> None:
    machine = Machine(BUDGET)
    machine.register(WorkerBound("payments", 5.0, after_http=True))
    machine.serving()
    assert not [d for d in _stopped(machine) if isinstance(d, do.FireStop)]
    machine.http_ended()
    (fired,) = [d for d in machine.decide(3.0) if isinstance(d, do.FireStop)]
    assert fired.deadline.at == pytest.approx(8.0)


def test_a_stuck_worker_is_aborted_at_its_bound_and_left_at_the_end_of_the_drain() -> None:
    machine = Machine(BUDGET)
    machine.register(WorkerBound("stuck"))
    machine.opening("pool", Part.POOLS)
    machine.opened("pool")
    _stopped(machine)
    assert machine.wake_at == pytest.approx(20.0)
    assert do.AbortWorker("stuck") in machine.decide(20.0)
    assert machine.wake_at == pytest.approx(60 - 10 - 1 - 1 - 1 - 15)
    decided = machine.decide(32.0)
    assert any(isinstance(d, do.CloseResource) for d in decided)
    assert machine.workers["stuck"].outcome == "abandoned"


def test_lame_duck_goes_before_the_drain_of_http() -> None:
    machine = Machine(Budget(lame_duck=3, http=20))
    machine.serving()
    assert not [d for d in _stopped(machine) if isinstance(d, do.BeginHttpDrain)]
    assert machine.wake_at == pytest.approx(3.0)
    assert [d for d in machine.decide(3.0) if isinstance(d, do.BeginHttpDrain)]


def test_what_comes_too_late_is_refused() -> None:
    machine = Machine(BUDGET)
    machine.stop(0.0, "early")
    assert machine.opening("pool", Part.POOLS) is False
    with pytest.raises(IntakeClosed, match="too late"):
        machine.register(WorkerBound("late"))


def test_a_bound_that_does_not_fit_is_refused_when_it_is_registered() -> None:
    machine = Machine(BUDGET)
    with pytest.raises(BudgetError, match="over grace_period 60"):
        machine.register(WorkerBound("slow", 40.0))


def test_a_failure_during_the_drain_is_remembered() -> None:
    machine = Machine(BUDGET)
    machine.register(WorkerBound("a"))
    _stopped(machine)
    machine.worker_ended("a", 1.0, "ValueError: broken")
    assert machine.failed
    assert machine.reason == "signal"
