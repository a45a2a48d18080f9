"""The seeds' arithmetic, and a refusal where it does not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.errors import BudgetError, SettingsError
from quiesce.lifecycle.budget import Budget, WorkerBound
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.plan import Plan


def test_the_seeds_budget_fits_into_sixty_seconds() -> None:
    # preStop 10, HTTP 25 beside workers 20, pool 1: the seeds say 56 by adding HTTP and workers up.
    # Side by side they are 36 (and 1 for the report), and closing Kafka, which the seeds forgot, fits as well.
    seeds = Budget(grace_period=60, prestop=10, http=25, workers=20, producers=0, pools=1, report=1, margin=0)
    assert seeds.longest() == 36 + 1
    assert Budget().longest() == 10 + 25 + 15 + 1 + 1 + 1


def test_a_worker_after_http_lengthens_the_path() -> None:
    budget = Budget(grace_period=60, prestop=10, http=25, workers=20)
    assert budget.longest([WorkerBound("charge_payments", 5, after_http=True)]) == 58


def test_the_orchestrators_default_of_thirty_seconds_is_refused_with_the_sum() -> None:
    with pytest.raises(BudgetError) as refused:
        Budget(grace_period=30, prestop=0, http=30)
    assert str(refused.value).startswith(
        "prestop 0 + max(lame_duck 0 + http 30, workers 20) + producers 15 + pools 1 + report 1 + margin 1 "
        "= 48 s, over grace_period 30 s"
    )


def test_serial_waits_as_the_seeds_write_them_do_not_fit_beside_kafka() -> None:
    # What the seeds' main really does: first HTTP, then the workers, then Kafka.
    with pytest.raises(BudgetError):
        Budget().require([WorkerBound("relay", 20, after_http=True)])


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "20", None, True])
def test_bad_values_are_named(value: object) -> None:
    with pytest.raises(SettingsError, match="budget http: got"):
        Budget(http=value)  # type: ignore[arg-type]  # what a user may pass without a type checker


def test_a_grace_period_of_zero_is_refused() -> None:
    with pytest.raises(SettingsError, match="grace_period"):
        Budget(grace_period=0, prestop=0, http=0, workers=0, producers=0, pools=0, report=0, margin=0)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ({"grace_period": 1, "margin": 1}, "grace_period 1 - prestop 0 - margin 1 = 0 s"),
        ({"grace_period": 0.001, "margin": 0}, "= 0.001 s from the request to stop to the hard deadline, takes 0.5 s"),
        ({"grace_period": 10, "margin": 1}, "budget report: got 0, takes more than 0 s"),
    ],
)
def test_what_leaves_nothing_to_stop_in_or_to_tell_it_is_refused(seconds: dict[str, float], told: str) -> None:
    nothing = dict.fromkeys(("prestop", "http", "workers", "producers", "pools", "report"), 0.0)
    with pytest.raises(BudgetError) as refused:
        Budget(**(nothing | seconds))
    assert told in str(refused.value)


@given(st.floats(0, 1e6), st.one_of(st.none(), st.floats(0, 100)))
def test_closing_is_reserved_backwards_from_the_end(t0: float, within: float | None) -> None:
    budget = Budget()
    plan = Plan.at(budget, t0, within)
    assert plan.end.at <= t0 + budget.available + 1e-6
    assert plan.drain.at <= plan.producers.at <= plan.pools.at <= plan.end.at
    kept = plan.end.at - plan.drain.at
    assert kept == pytest.approx(budget.reserved * plan.scale, abs=1e-6)
    # Whatever a worker asks for, the reserve stays.
    assert plan.worker(1e9, t0) <= plan.abort <= plan.drain
    assert plan.http <= plan.abort


def test_where_there_is_slack_every_bound_is_kept_whole_and_else_its_last_tenth_goes() -> None:
    assert Plan.at(Budget(), 0.0).http.at == 25
    assert Plan.at(Budget(), 0.0).worker(20, 0.0).at == 20
    assert Plan.at(Budget(), 0.0).worker(32, 0.0).at == 31
    tight = Budget(grace_period=6, prestop=0, http=2.5, workers=2.5, producers=1, pools=1, report=1, margin=0.5)
    plan = Plan.at(tight, 0.0)
    assert (plan.http.at, plan.worker(2.5, 0.0).at, plan.abort.at, plan.drain.at) == (2.25, 2.25, 2.25, 2.5)
    # One told late gives a tenth of what is left to it.
    assert plan.worker(1, 2.0).at == pytest.approx(2.45)


def test_what_is_left_counts_to_sigkill_and_the_margin_is_kept() -> None:
    assert Plan.at(Budget(), 100.0, 50).end.at == 149, "nothing is short: 49 s and the margin of 1 s"
    assert Plan.at(Budget(), 100.0, 25).end.at == pytest.approx(124.5)
    assert Plan.at(Budget(), 100.0, 0).end.at == 100


def test_of_two_limits_each_instant_takes_the_earlier_one() -> None:
    plan = Plan.at(Budget(), 0.0)
    assert plan.shortened(10.0, 40) is plan
    shorter = plan.shortened(10.0, 10)
    assert shorter.t0 == 0.0
    assert (shorter.end.at, shorter.scale) == pytest.approx((19.8, 0.2))
    assert shorter.drain.at == pytest.approx(10 + 32 * 0.2)
    assert shorter.http.at == pytest.approx(10 + 25 * 0.2)
    assert shorter.shortened(11.0, 10) is shorter


def test_each_closer_has_a_moment_whatever_the_ones_before_it_took() -> None:
    nothing = Budget(grace_period=5, prestop=0, http=1, workers=1, producers=0, pools=0, report=1, margin=1)
    plan = Plan.at(nothing, 0.0)
    assert plan.closer(plan.part_from(Part.POOLS, 0.1), 0.1, 1).at == pytest.approx(0.2)
    # One that blocks the loop took all there was; the report gives half of its time, and not more.
    plan = Plan.at(Budget(), 0.0)
    assert plan.closer(plan.pools, 48.2, 1).at == pytest.approx(48.3)
    assert plan.closer(plan.pools, 48.2, 6).at == pytest.approx(48.25)
    assert plan.closer(plan.pools, 48.6, 1).at == 48.6


def test_closers_of_a_part_share_what_remains() -> None:
    plan = Plan.at(Budget(), 0.0)
    late = plan.part_from(Part.PRODUCERS, 32.0)
    assert late.at == pytest.approx(47.0)
    assert plan.closer(late, 32.0, 3).at == pytest.approx(37.0)
    # The first overran; the second still gets half of what is left.
    assert plan.closer(late, 37.0, 2).at == pytest.approx(42.0)
    # A part that begins early keeps its own bound.
    early = plan.part_from(Part.PRODUCERS, 5.0)
    assert plan.closer(early, 5.0, 1).at == pytest.approx(20.0)
