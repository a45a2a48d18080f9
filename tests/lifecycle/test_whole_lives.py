"""Whole shutdowns, played in virtual time: whatever happens when, the order of the machine holds."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from played_lives import ROOMY, Life, Opening, WorkerPlan, World, lives, play_and_check, worker_plans

from quiesce.lifecycle import commands as do
from quiesce.lifecycle.budget import HAND_BACK_BOUND, Budget
from quiesce.lifecycle.events import PhaseChanged
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.phases import Part, Phase
from quiesce.lifecycle.plan import unwind


@settings(max_examples=500, deadline=None)
@given(lives)
def test_every_life_keeps_the_order(life: Life) -> None:
    play_and_check(life)


tight_budgets = st.builds(
    lambda drain, closing: Budget(
        grace_period=drain + 3 * closing, prestop=0, http=drain, workers=drain, producers=closing, pools=closing,
        report=closing, margin=0,
    ),
    st.floats(0.5, 60),
    st.floats(0.2, 5),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(tight_budgets, st.floats(0, 0.999), st.one_of(st.none(), st.floats(0, 70)))
def test_a_budget_without_slack_still_leaves_a_moment_to_unwind(
    budget: Budget, share: float, second_signal: float | None
) -> None:
    """`share`: of that moment, which everything that is torn takes."""
    never, takes = float("inf"), share * unwind(budget.http)
    worker = WorkerPlan(None, False, never, takes, None, frozenset(), False, False)
    life = Life([], 0.0, [0.0, 0.0], True, never, takes, [worker], [0.0], 0.0, second_signal, [(0.0, never, takes)])
    pool = Opening(Part.POOLS, 0.0, 0.0, 0.0)
    world = World(replace(life, opens=[pool]), Machine(budget))
    world.play()
    assert world.machine.workers["w0"].outcome == "aborted"
    (closed,) = [when for when, _ in world.of(do.CloseResource)]
    assert world.over_at["w0"] <= closed + 1e-6
    assert not world.open_sections, "torn sections have ended, too"
    plan = world.machine.plan
    assert plan is not None
    assert closed < plan.drain.at, "requests as well: else closing would have begun at the end of the drain"


@settings(max_examples=150, deadline=None)
@given(st.lists(worker_plans, max_size=4), st.booleans(), st.floats(1, 49))
def test_whoever_heeds_its_abort_is_over_when_the_budget_says(
    workers: list[WorkerPlan], http: bool, within: float
) -> None:
    never = float("inf")
    life = Life([], 0.0, [0.0, 0.0], http, never, 0.0, [], [], 1.0, None, [])
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
@given(lives.filter(lambda life: life.second_signal is None), st.one_of(st.just(0.0), st.floats(0.1, 60)))
def test_when_less_time_is_left_everything_shrinks(life: Life, within: float) -> None:
    quiet = [replace(worker, crashes_at=None) for worker in life.workers]
    world = World(replace(life, workers=quiet), within=within)
    world.play()
    assert world.now <= life.stop_at + min(within, ROOMY.available) + 1e-9
    # The margin in front of SIGKILL shrinks like the rest, and is kept.
    plan = world.machine.plan
    assert plan is not None
    if within < ROOMY.available:
        assert plan.end.at <= life.stop_at + within * (1 - ROOMY.margin / (ROOMY.available + ROOMY.margin)) + 1e-9
