"""Whole shutdowns, played in virtual time: whatever happens when, the order of the machine holds."""

import heapq
import itertools
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiesce.errors import BudgetError, IntakeClosed, SettingsError
from quiesce.lifecycle import commands as do
from quiesce.lifecycle.budget import HAND_BACK_BOUND, Budget, WorkerBound
from quiesce.lifecycle.events import PartBegan, PartEnded, PhaseChanged
from quiesce.lifecycle.machine import OUT_OF_TIME, Decision, Machine
from quiesce.lifecycle.phases import Part, Phase
from quiesce.lifecycle.report import compose

BUDGET = Budget()
# Room for a worker that comes after HTTP, takes the default bound, and hands back.
ROOMY = Budget(http=11)

# Some end at once, some in time, some late, some never.
durations = st.one_of(st.just(0.0), st.floats(0.001, 5), st.floats(10, 40), st.just(float("inf")))


@dataclass(frozen=True)
class WorkerPlan:
    bound: float | None
    after_http: bool
    ends_after_stop: float
    ends_after_abort: float
    crashes_at: float | None
    keeps: frozenset[int] | Literal["all"]
    """By number; only those with a smaller one count, so that there is no circle."""
    hands_back: bool
    thread: bool

    def ask(self, index: int) -> WorkerBound:
        keeps = self.keeps if self.keeps == "all" else tuple(f"w{n}" for n in sorted(self.keeps) if n < index)
        return WorkerBound(f"w{index}", self.bound, self.after_http, keeps, self.hands_back)


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
    keeps=st.one_of(st.just(frozenset[int]()), st.frozensets(st.integers(0, 3), max_size=3), st.just("all")),
    hands_back=st.booleans(),
    thread=st.booleans(),
)


def asks_of(workers: list[WorkerPlan]) -> list[WorkerBound]:
    """What they ask for; without their edges where those do not fit together."""
    asks = [worker.ask(index) for index, worker in enumerate(workers)]
    try:
        machine = Machine(ROOMY)
        for ask in asks:
            machine.register(ask)
        machine.check_workers()
    except SettingsError:
        return [replace(ask, keeps=()) for ask in asks]
    return asks


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
    over_at: dict[str, float] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    _queue: list[tuple[float, int, str, tuple[object, ...]]] = field(default_factory=list)
    _count: "itertools.count[int]" = field(default_factory=itertools.count)
    _ended: set[str] = field(default_factory=set)
    _running: bool = False
    _sections: int = 0
    _start_over: bool = False

    def at(self, when: float, act: str, *args: object) -> None:
        if when != float("inf"):
            heapq.heappush(self._queue, (when, next(self._count), act, args))

    def play(self) -> None:
        life = self.life
        for ask in asks_of(life.workers):
            self.machine.register(ask)
        self.machine.check_workers()
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
            self._sections += 1
            self.machine.sections_open(self._sections)
            self.at(self.now + lasts, "section_ended")

    def _do_section_ended(self) -> None:
        self._sections -= 1
        self.machine.sections_open(self._sections)

    def _do_worker_ended(self, name: str, error: str | None) -> None:
        if name not in self._ended and self.machine.workers[name].running:
            self._ended.add(name)
            self.over_at[name] = self.now
            plan = self.life.workers[int(name[1:])]
            self.machine.worker_ended(
                name, self.now, error, torn=not plan.thread, handed_back=plan.hands_back and not plan.thread
            )

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


@settings(max_examples=700, deadline=None)
@given(lives)
def test_every_life_keeps_the_order(life: Life) -> None:
    play_and_check(life)


def play_and_check(life: Life) -> None:
    """Plays a life to its end and checks the order; `make races` plays ten thousand."""
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
        ask = machine.workers[decision.worker].ask
        if not ask.after_http and not ask.keeps:
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

    # What protects the work of others is told, and torn, only after that work is over, or when all is closed.
    closing = next(when for when, d in log if isinstance(d, PhaseChanged) and d.phase is Phase.CLOSING)
    for when, decision in [*world.of(do.FireStop), *world.of(do.AbortWorker)]:
        assert isinstance(decision, do.FireStop | do.AbortWorker)
        keeper = machine.workers[decision.worker].ask
        for other in machine.workers.values():
            if keeper.waits_for(other.ask) and other.running and when < closing:
                assert world.over_at[other.ask.name] <= when
    # Everybody who ran was told, or was over before that.
    for worker in machine.workers.values():
        assert not worker.running or worker.told_at is not None or worker.outcome is not None

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
    left = any(worker.outcome in ("aborted", "handed back", "abandoned") for worker in machine.workers.values())
    left = left or any(resource.outcome == "overran" for resource in machine.resources.values())
    assert report.exit_code == (1 if crashed else 75 if left else 0)
    assert [r.resource for r in report.resources] == [d.resource for d in closed]


@settings(max_examples=150, deadline=None)
@given(st.lists(worker_plans, max_size=4), st.booleans(), st.floats(1, 49))
def test_whoever_heeds_its_abort_is_over_when_the_budget_says(
    workers: list[WorkerPlan], http: bool, within: float
) -> None:
    never = float("inf")
    life = Life([], 0.0, False, http, never, 0.0, [], [], 1.0, None, [])
    late = [
        replace(worker, ends_after_stop=never, crashes_at=None, ends_after_abort=HAND_BACK_BOUND * worker.hands_back)
        for worker in workers
    ]
    # A second to spare: who is aborted at the very end of the drain has no instant left to unwind in.
    spare = replace(ROOMY, http=10)
    world = World(replace(life, workers=late), Machine(spare))
    world.play()
    budget = world.machine.budget
    asks = [state.ask for state in world.machine.workers.values()]
    drain = budget.longest(asks) - budget.prestop - budget.reserved - budget.margin
    closing = next(when for when, d in world.log if isinstance(d, PhaseChanged) and d.phase is Phase.CLOSING)
    assert closing <= life.stop_at + drain + 1e-6
    assert all(state.outcome != "abandoned" for state in world.machine.workers.values())
    # Each had all of its bound, from the instant it was told.
    for state in world.machine.workers.values():
        assert state.deadline is not None
        assert state.told_at is not None
        assert state.deadline.at - state.told_at >= budget.bound_of(state.ask) - 1e-6

    # Where less is left all of it shrinks, and the order stays. Handing back takes its time all the same.
    at_once = [replace(worker, ends_after_abort=0.0) for worker in late]
    short = World(replace(life, workers=at_once), Machine(spare), within)
    short.play()
    assert all(state.outcome != "abandoned" for state in short.machine.workers.values())


@settings(max_examples=150, deadline=None)
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
    assert do.AbortWorker("stuck", OUT_OF_TIME) not in machine.decide(19.9)
    assert do.AbortWorker("stuck", OUT_OF_TIME) in machine.decide(20.0)
    assert not [d for d in machine.decide(31.9) if isinstance(d, do.CloseResource)]
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


def test_s12_a_heartbeat_is_told_only_after_the_work_it_protects_is_over() -> None:
    machine = Machine(BUDGET)
    machine.register(WorkerBound("heartbeat", keeps=("payments",)))
    machine.register(WorkerBound("payments"))
    machine.check_workers()
    assert [d.worker for d in _stopped(machine) if isinstance(d, do.FireStop)] == ["payments"]
    machine.worker_ended("payments", 7.0)
    (fired,) = [d for d in machine.decide(7.0) if isinstance(d, do.FireStop)]
    # A keeper's own bound is short, so that it fits into the budget without being asked for.
    assert (fired.worker, fired.deadline.at) == ("heartbeat", 8.0)


def test_a_keeper_of_work_that_never_ends_goes_with_the_end_of_the_drain() -> None:
    machine = Machine(BUDGET)
    machine.register(WorkerBound("heartbeat", keeps="all"))
    machine.register(WorkerBound("stuck"))
    _stopped(machine)
    assert [d for d in machine.decide(20.0) if isinstance(d, do.AbortWorker)] == [do.AbortWorker("stuck", OUT_OF_TIME)]
    decided = machine.decide(32.0)
    assert do.AbortWorker("heartbeat", OUT_OF_TIME) in decided
    fired = next(i for i, d in enumerate(decided) if isinstance(d, do.FireStop))
    assert fired < decided.index(do.AbortWorker("heartbeat", OUT_OF_TIME))


def test_a_second_signal_tears_the_work_first_and_its_keeper_after_it() -> None:
    machine = Machine(BUDGET)
    machine.register(WorkerBound("heartbeat", keeps=("payments",)))
    machine.register(WorkerBound("payments"))
    _stopped(machine)
    machine.abort(2.0, "received SIGTERM again")
    aborted = [d for d in machine.decide(2.0) if isinstance(d, do.AbortWorker)]
    assert aborted == [do.AbortWorker("payments", "received SIGTERM again")]
    machine.worker_ended("payments", 2.1)
    told = [d for d in machine.decide(2.1) if isinstance(d, do.FireStop | do.AbortWorker)]
    assert [type(d) for d in told] == [do.FireStop, do.AbortWorker]


@pytest.mark.parametrize(
    ("asks", "text"),
    [
        ([WorkerBound("a", keeps=("b",))], "worker 'a' keeps 'b', and there is no such worker"),
        ([WorkerBound("a", keeps=("a",))], "in a circle: a"),
        ([WorkerBound("a", keeps=("b",)), WorkerBound("b", keeps=("a",)), WorkerBound("c")], "in a circle: a, b"),
        ([WorkerBound("a", keeps=("b",), bound=13.0), WorkerBound("b")], "workers 20 [+] keepers 13"),
        ([WorkerBound("a", keeps="all", bound=8.0), WorkerBound("b")], "http 25 [+] keepers 8"),
    ],
)
def test_edges_that_cannot_be_kept_are_refused(asks: list[WorkerBound], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        _registered(asks)


def _registered(asks: list[WorkerBound]) -> Machine:
    machine = Machine(BUDGET)
    for ask in asks:
        machine.register(ask)
    machine.check_workers()
    return machine


def test_s31_each_worker_has_its_own_bound_side_by_side_and_a_slow_one_takes_nothing_from_the_rest() -> None:
    machine = Machine(BUDGET)
    for name, bound in (("slow", 3.0), ("middle", 5.0), ("quick", None)):
        machine.register(WorkerBound(name, bound))
    fired = [d for d in _stopped(machine) if isinstance(d, do.FireStop)]
    assert [d.deadline.at for d in fired] == [3.0, 5.0, 20.0]
    assert [d for d in machine.decide(3.0) if isinstance(d, do.AbortWorker)] == [do.AbortWorker("slow", OUT_OF_TIME)]
    machine.worker_ended("middle", 4.0)
    machine.worker_ended("quick", 19.0)
    assert machine.workers["middle"].outcome == machine.workers["quick"].outcome == "finished"


def test_o26_all_intake_closes_first_and_in_the_same_instant() -> None:
    machine = Machine(Budget(lame_duck=3, http=20))
    for index in range(5):
        machine.register(WorkerBound(f"queue {index}"))
    machine.serving()
    decided = _stopped(machine)
    kinds = [type(d) for d in decided]
    assert kinds[:6] == [do.BecomeNotReady, *[do.FireStop] * 5]
    assert {machine.workers[f"queue {index}"].told_at for index in range(5)} == {0.0}


def test_a_worker_that_hands_back_is_aborted_early_enough_for_that() -> None:
    machine = Machine(BUDGET)
    machine.register(WorkerBound("claims", 31.0, hands_back=True))
    (fired,) = [d for d in _stopped(machine) if isinstance(d, do.FireStop)]
    assert fired.deadline.at == pytest.approx(31.0)
    with pytest.raises(BudgetError):
        Machine(BUDGET).register(WorkerBound("claims", 32.0, hands_back=True))


def test_a_thread_that_ends_after_its_abort_was_not_torn() -> None:
    machine = Machine(BUDGET)
    machine.register(WorkerBound("thread", 5.0))
    _stopped(machine)
    assert do.AbortWorker("thread", OUT_OF_TIME) in machine.decide(5.0)
    machine.worker_ended("thread", 6.0, torn=False)
    assert machine.workers["thread"].outcome == "finished"
    # And what comes after the closing began changes nothing any more.
    machine.decide(6.0)
    machine.worker_ended("thread", 7.0, "too late")
    assert not machine.failed


def test_sections_know_their_time() -> None:
    machine = Machine(BUDGET)
    machine.register(WorkerBound("a"))
    assert machine.sections_until.at == float("inf")
    _stopped(machine)
    assert machine.sections_until.at == pytest.approx(32.0)
    machine.abort(3.0, "received SIGTERM again")
    assert machine.sections_until.at == pytest.approx(4.0)
