"""When the machine has somebody look at what has not ended: at half and at nine tenths of its bound."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from played_lives import Life, World, lives

from quiesce.lifecycle import commands as do
from quiesce.lifecycle.budget import Budget, WorkerBound
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.watches import Watches, What

BUDGET = Budget()


def looks(machine: Machine, now: float) -> list[tuple[What, str, float]]:
    return [(d.what, d.name, d.share) for d in machine.decide(now) if isinstance(d, do.LookAt)]


def draining(*workers: WorkerBound) -> Machine:
    machine = Machine(BUDGET)
    for worker in workers:
        machine.members.register(worker)
    machine.members.opening("pool", Part.POOLS)
    machine.members.opened("pool")
    machine.start_ended()
    machine.decide(0.0)
    machine.stop(0.0, "signal")
    assert looks(machine, 0.0) == []
    return machine


@settings(max_examples=300, deadline=None)
@given(lives.map(lambda life: replace(life, hastened=None)))
def test_whatever_happens_each_look_comes_at_its_instant_and_once(life: Life) -> None:
    world = World(life)
    world.play()
    plan = world.machine.plan
    assert plan is not None
    seen: Counter[tuple[What, str, float]] = Counter()
    for when, decision in world.of(do.LookAt):
        assert isinstance(decision, do.LookAt)
        seen[decision.what, decision.name, decision.share] += 1
        if decision.share == 1.0:
            assert decision.what is What.START, "the others' end is their abort, or their being given up"
            assert world.machine.left_in_start
            continue
        assert decision.share in (0.5, 0.9)
        if decision.what is What.WORKER:
            worker = world.machine.workers[decision.name]
            assert worker.told_at is not None
            assert worker.deadline is not None
            bound = worker.deadline.at - worker.told_at
            # Never early; late only where the world was busy in between.
            assert when >= worker.told_at + decision.share * bound - 1e-6
            assert when <= worker.deadline.at
        bounds = {What.SECTIONS: plan.abort.at, What.START: plan.drain.at}
        if decision.what in bounds:
            assert when >= plan.t0 + decision.share * (bounds[decision.what] - plan.t0) - 1e-6
    assert all(count == 1 for count in seen.values())


def test_a_worker_is_looked_at_at_half_and_at_nine_tenths_of_its_own_bound() -> None:
    machine = draining(WorkerBound("slow", 10.0), WorkerBound("quick", 4.0))
    assert machine.wake_at == pytest.approx(2.0)
    assert looks(machine, 2.0) == [(What.WORKER, "quick", 0.5)]
    machine.worker_ended("quick", 2.5)
    assert machine.wake_at == pytest.approx(5.0), "who has ended is not looked at"
    assert looks(machine, 5.0) == [(What.WORKER, "slow", 0.5)]
    assert looks(machine, 8.9) == []
    assert looks(machine, 9.0) == [(What.WORKER, "slow", 0.9)]
    assert machine.wake_at == pytest.approx(10.0), "the end of the bound is the abort's"


def test_several_missed_looks_are_one_and_none_comes_behind_the_abort() -> None:
    machine = draining(WorkerBound("a", 10.0), WorkerBound("b", 20.0))
    assert looks(machine, 19.5) == [(What.WORKER, "b", 0.9)], "a was aborted in the same turn"


def test_a_closer_is_looked_at_within_its_own_share_of_the_time() -> None:
    machine = draining()
    deadline = machine.resources["pool"].deadline
    assert deadline is not None
    assert deadline.at == pytest.approx(1.0), "nothing runs, so the closing begins at once"
    assert looks(machine, 0.5) == [(What.CLOSER, "pool", 0.5)]
    machine.closed("pool", 0.6, "clean")
    assert looks(machine, 0.9) == []


def test_sections_are_looked_at_only_while_some_are_open() -> None:
    machine = draining(WorkerBound("a"))
    drain = machine.plan.drain.at if machine.plan is not None else 0.0
    machine.sections_open(1)
    assert (What.SECTIONS, "", 0.5) in looks(machine, drain * 0.5)
    machine.sections_open(0)
    assert (What.SECTIONS, "", 0.9) not in looks(machine, drain * 0.9)


def test_a_start_that_does_not_heed_its_interruption_is_looked_at() -> None:
    machine = Machine(BUDGET)
    machine.stop(0.0, "signal")
    machine.decide(0.0)
    drain = machine.plan.drain.at if machine.plan is not None else 0.0
    assert machine.wake_at == pytest.approx(drain * 0.5)
    assert looks(machine, drain * 0.5) == [(What.START, "", 0.5)]


def test_a_thousand_that_end_at_once_cost_no_search_each() -> None:
    asked = 0

    def runs(what: What, name: str) -> bool:
        nonlocal asked
        asked += 1
        return False

    watches = Watches(runs)
    for number in range(1000):
        watches.begin(What.WORKER, str(number), 0.0, 20.0)
    for _ in range(1000):
        assert watches.next_at is None
    assert asked == 2000, "each look is asked for once, and dropped"
