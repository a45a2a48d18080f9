"""Backoff, crash points, exit codes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.lifecycle import crash_points
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.grid import Grid
from quiesce.lifecycle.report import exit_code
from quiesce.lifecycle.restart import Failures, Restart


@given(st.integers(1, 100_000), st.floats(0, 0.999))
def test_backoff_is_jittered_and_bounded(attempt: int, draw: float) -> None:
    backoff = Backoff(first=0.1, ceiling=30.0, draw=lambda: draw)
    assert 0 <= backoff.wait(attempt) <= min(30.0, 0.1 * 2.0 ** min(attempt - 1, 64))
    assert backoff.limit(attempt + 1) >= backoff.limit(attempt)


def test_a_crash_point_runs_only_what_is_armed() -> None:
    reached: list[str] = []
    crash_points.reach("a")
    crash_points.arm("a", reached.append)
    crash_points.reach("a")
    crash_points.reach("b")
    crash_points.disarm()
    crash_points.reach("a")
    assert reached == ["a"]


@pytest.mark.parametrize(
    ("failed", "abandoned", "status"), [(True, True, 1), (True, False, 1), (False, True, 75), (False, False, 0)]
)
def test_exit_codes(failed: bool, abandoned: bool, status: int) -> None:
    assert exit_code(failed=failed, abandoned=abandoned) == status


def test_a_deadline_never_goes_below_zero() -> None:
    assert Deadline(5.0).remaining(7.0) == 0.0
    assert Deadline.never().remaining(7.0) == float("inf")
    assert Deadline(5.0).before(2.0) == Deadline(3.0)


def test_failures_are_counted_within_their_window_and_the_waits_grow_with_them() -> None:
    failures = Failures(Restart(failures=3, within=10, backoff=Backoff(first=1, ceiling=30, draw=lambda: 1.0)))
    assert failures.add(0.0) == 1.0
    assert failures.add(5.0) == 2.0
    # The first has left the window, so this is the second again.
    assert failures.add(10.0) == 2.0
    assert failures.add(14.0) is None
    assert failures.count == 3


def test_a_grid_of_zero_seconds_is_always_due() -> None:
    grid = Grid(5.0, 0.0)
    assert grid.next_index(7, 100.0) == 8
    assert grid.instant(8) == 5.0
