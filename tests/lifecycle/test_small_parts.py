"""Backoff, crash points, exit codes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiesce.lifecycle import crash_points
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.report import exit_code


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
