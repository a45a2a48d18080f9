"""Whole lives of a service, played in virtual time: what the world does, and the order that must hold all the same."""

import heapq
import itertools
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from hypothesis import strategies as st

from quiesce.errors import SettingsError
from quiesce.lifecycle import commands as do
from quiesce.lifecycle.budget import Budget, WorkerBound
from quiesce.lifecycle.events import PartBegan, PartEnded, PhaseChanged
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.phases import Part, Phase
from quiesce.lifecycle.plan import UNWIND, unwind
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
class Opening:
    """In the start-up function or in a task of the user's."""

    part: Part
    begins: float
    lasts: float
    unwinds: float
    """Seconds from its interruption to its end; it is open all the same where it was faster."""


@dataclass(frozen=True)
class Life:
    """What the world does in one life of a service. Instants are seconds from the start."""

    opens: list["Opening"]
    start_ends: float
    start_ends_after_interrupt: list[float]
    """Seconds after the first interruption, and after the second one."""
    http: bool
    http_ends: float
    http_ends_after_abort: float
    workers: list[WorkerPlan]
    closers: list[float]
    stop_at: float
    second_signal: float | None
    sections: list[tuple[float, float, float]]
    """When each begins, how long it lasts, and how long it unwinds once it is torn."""
    hastened: tuple[float, float] | None = None
    """How long after the stop it is asked for once more, and how many seconds are left then."""


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
            machine.members.register(ask)
        machine.members.check_workers()
    except SettingsError:
        return [replace(ask, keeps=()) for ask in asks]
    return asks


openings = st.builds(
    Opening,
    part=st.sampled_from([Part.PRODUCERS, Part.POOLS]),
    begins=st.floats(0, 3),
    lasts=st.one_of(st.just(0.0), durations),
    unwinds=durations,
)

lives = st.builds(
    Life,
    opens=st.lists(openings, max_size=5),
    start_ends=st.one_of(st.floats(0, 2), durations),
    start_ends_after_interrupt=st.lists(durations, min_size=2, max_size=2),
    http=st.booleans(),
    http_ends=durations,
    http_ends_after_abort=durations,
    workers=st.lists(worker_plans, max_size=4),
    closers=st.lists(durations, min_size=5, max_size=5),
    stop_at=st.floats(0, 4),
    second_signal=st.one_of(st.none(), st.floats(0, 30)),
    sections=st.lists(st.tuples(st.floats(0, 34), durations, durations), max_size=3),
    hastened=st.one_of(st.none(), st.tuples(st.floats(0, 40), st.floats(0, 20))),
)


@dataclass
class World:
    """Plays a life: does what the machine decides, and tells it the outcome at the instant the life says."""

    life: Life
    machine: Machine = field(default_factory=lambda: Machine(ROOMY))
    within: float | None = None
    now: float = 0.0
    log: list[tuple[float, do.Decision]] = field(default_factory=list)
    over_at: dict[str, float] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    opened: dict[str, float] = field(default_factory=dict)
    open_sections: dict[int, float] = field(default_factory=dict)
    """By number: how long each unwinds."""
    left_sections: list[int] = field(default_factory=list)
    """Those that were still open when closing began."""
    _queue: list[tuple[float, int, str, tuple[object, ...]]] = field(default_factory=list)
    _count: "itertools.count[int]" = field(default_factory=itertools.count)
    _ended: set[str] = field(default_factory=set)
    _running: bool = False
    _interrupts: int = 0

    def at(self, when: float, act: str, *args: object) -> None:
        if when != float("inf"):
            heapq.heappush(self._queue, (when, next(self._count), act, args))

    def play(self) -> None:
        life = self.life
        for ask in asks_of(life.workers):
            self.machine.members.register(ask)
        self.machine.members.check_workers()
        for index, opening in enumerate(life.opens):
            self.at(opening.begins, "open", f"r{index}", opening)
        if life.http:
            self.machine.serving()
        self.at(life.start_ends, "start_ended")
        self.at(life.stop_at, "stop")
        if life.second_signal is not None:
            self.at(life.stop_at + life.second_signal, "abort")
        for number, (begins, _, _) in enumerate(life.sections):
            self.at(begins, "section", number)
        if life.hastened is not None:
            self.at(life.stop_at + life.hastened[0], "hasten", life.hastened[1])
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

    def _perform(self, decision: do.Decision) -> None:
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
            case do.InterruptStart():
                assert self._interrupts < 2
                self.at(self.now + self.life.start_ends_after_interrupt[self._interrupts], "start_ended")
                self._interrupts += 1
                for name in self.machine.members.in_opening:
                    self.at(self.now + self.life.opens[int(name[1:])].unwinds, "open_failed", name)
            case PhaseChanged(phase=Phase.CLOSING):
                self.left_sections = list(self.open_sections)
            case do.AbortSections():
                for number, unwinds in self.open_sections.items():
                    self.at(self.now + unwinds, "section_ended", number)
            case do.CloseResource(resource=name):
                self.at(self.now + self.life.closers[int(name[1:])], "closed", name)
            case do.MakeReport():
                self.at(self.now, "reported")

    def _do_open(self, name: str, opening: Opening) -> None:
        if self.machine.members.opening(name, opening.part):
            self.begun.append(name)
            self.at(self.now + opening.lasts, "opened", name)

    def _do_opened(self, name: str) -> None:
        if name in self.machine.members.in_opening:
            self.machine.members.opened(name)
            self.opened[name] = self.now

    def _do_open_failed(self, name: str) -> None:
        if name in self.machine.members.in_opening:
            self.machine.members.open_failed(name)

    def _do_start_ended(self) -> None:
        self.machine.start_ended()

    def _do_hasten(self, within: float) -> None:
        self.machine.stop(self.now, "less time is left", within=within)

    def _do_stop(self) -> None:
        self.machine.stop(self.now, "signal", within=self.within)

    def _do_abort(self) -> None:
        if self.machine.phase is not Phase.STOPPED:
            self.machine.abort(self.now, "second signal")

    def _do_section(self, number: int) -> None:
        # As in the shell: none begins once those before it were torn, nor behind the closing.
        if self.machine.phase in (Phase.STARTING, Phase.RUNNING, Phase.DRAINING) and not self.of(do.AbortSections):
            _, lasts, unwinds = self.life.sections[number]
            self.open_sections[number] = unwinds
            self.machine.sections_open(len(self.open_sections))
            self.at(self.now + lasts, "section_ended", number)

    def _do_section_ended(self, number: int) -> None:
        self.open_sections.pop(number, None)
        self.machine.sections_open(len(self.open_sections))

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

    def of(self, kind: type) -> list[tuple[float, do.Decision]]:
        return [(when, decision) for when, decision in self.log if isinstance(decision, kind)]


def _index(world: World, kind: type) -> list[int]:
    return [index for index, (_, decision) in enumerate(world.log) if isinstance(decision, kind)]


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

    # Every opened resource is closed once, none other, in reverse within its part, producers first. What was left
    # while it opened is closed if it comes in time, and then in no order.
    closing = next(when for when, d in log if isinstance(d, PhaseChanged) and d.phase is Phase.CLOSING)
    closed = [d for _, d in log if isinstance(d, do.CloseResource)]
    names = [d.resource for d in closed]
    assert len(names) == len(set(names))
    assert set(names) <= set(world.opened)
    in_order = [name for name in names if name not in machine.left_in_start]
    expected = [name for name in reversed(world.begun) if name in world.opened and name not in machine.left_in_start]
    assert in_order == sorted(expected, key=lambda name: machine.resources[name].part is Part.POOLS)

    # What protects the work of others is told, and torn, only after that work is over, or when all is closed.
    for when, decision in [*world.of(do.FireStop), *world.of(do.AbortWorker)]:
        assert isinstance(decision, do.FireStop | do.AbortWorker)
        keeper = machine.workers[decision.worker].ask
        for other in machine.workers.values():
            if keeper.waits_for(other.ask) and other.running and when < closing:
                over = world.over_at.get(other.ask.name, inf) <= when
                assert over or (other.aborted_at is not None and other.aborted_at < when)
    # Everybody who ran was told, or was over before that.
    for worker in machine.workers.values():
        assert not worker.running or worker.told_at is not None or worker.outcome is not None

    check_patience(world, closing)
    # Each closer has a share of the time that was reserved, even behind one that overran.
    for when, decision in world.of(do.CloseResource):
        assert isinstance(decision, do.CloseResource)
        assert decision.deadline.at >= when
        if life.hastened is not None:
            continue  # what was begun before that was told another deadline
        assert decision.deadline.at > when
        assert decision.deadline.at <= plan.end.at - ROOMY.report * plan.scale / 2 + 1e-9

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
    left = left or bool(machine.left_in_start)
    assert report.exit_code == (1 if crashed else 75 if left else 0)
    assert [r.resource for r in report.resources] == [d.resource for d in closed]


def check_patience(world: World, closing: float) -> None:
    """Closing begins when all is over, or when the time for it is; and what is torn has time to unwind before."""
    machine, life, plan = world.machine, world.life, world.machine.plan
    assert plan is not None
    aborted_at = life.stop_at + life.second_signal if life.second_signal is not None else float("inf")
    torn_at = min((when for when, _ in world.of(do.AbortSections)), default=None)
    ends = plan.drain.at
    if aborted_at < ends:
        torn = [aborted_at, aborted_at if torn_at is None else torn_at]
        torn += [when for when, _ in world.of(do.AbortWorker) if when < closing]
        ends = min(ends, max(torn) + UNWIND)
    left = [worker for worker in machine.workers.values() if worker.outcome == "abandoned"]
    http_left = life.http and not any(d.part is Part.HTTP for _, d in world.log if isinstance(d, PartEnded))
    # Whoever is left was torn before that, with a moment to unwind; a keeper of what hangs as well. Unless the time
    # that was left has been taken away.
    for worker in left:
        assert worker.aborted_at is not None
        assert worker.aborted_at < closing or life.hastened is not None
    if closing < ends - 1e-6:
        assert not left
        assert not machine.left_in_start
        assert not http_left
        assert not world.left_sections
    if life.hastened is None and aborted_at >= closing:
        # A section that was open at its instant was torn then, and not only at the end.
        assert torn_at is None or torn_at >= plan.abort.at - 1e-6
        for worker in machine.workers.values():
            if worker.deadline is not None and worker.told_at is not None and worker.told_at < closing:
                kept = unwind(plan.drain.at - worker.told_at)
                assert worker.deadline.at <= max(worker.told_at, plan.drain.at - kept) + 1e-6
