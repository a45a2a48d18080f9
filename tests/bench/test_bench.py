"""The bench: its arithmetic, and that it runs."""

import json
import subprocess
import sys

import pytest

from quiesce.bench.figures import Figure, Machine, above, outcome
from quiesce.bench.processes import Measured
from quiesce.errors import StartError

KEYS = {"idle_cpu_percent", "ticking_cpu_percent", "critical_us", "drain_cpu_seconds", "exit_ms", "exit_http_ms"}


def test_a_figure_passes_below_its_target_only() -> None:
    assert Figure("k", "says", 149.9, "ms", 150.0).passed is True
    assert Figure("k", "says", 150.0, "ms", 150.0).passed is False
    assert Figure("k", "says", 150.0, "ms").passed is None
    assert "NOT KEPT" in Figure("k", "says", 150.0, "ms", 150.0).line()


def test_one_late_sample_does_not_move_the_difference() -> None:
    figure = above("k", "says", [30.0, 31.0, 900.0], [10.0, 700.0, 11.0], "ms", 25.0)
    assert figure.value == 20.0
    assert figure.passed


def test_one_missed_target_fails_the_whole_and_one_without_target_does_not() -> None:
    machine = Machine(2, 0.1, 0.2)
    kept, told = Figure("a", "says", 1.0, "s", 2.0), Figure("b", "says", 9.0, "s")
    assert outcome([kept, told], machine)["passed"] is True
    assert outcome([kept, Figure("c", "says", 3.0, "s", 2.0)], machine)["passed"] is False
    assert set(outcome([kept, told], machine)["figures"]) == {"a", "b"}


def test_a_busy_machine_is_said() -> None:
    assert "busy" in Machine(2, 0.1, 1.9).line()
    assert "busy" not in Machine(2, 0.1, 0.2).line()


def test_a_measured_process_that_ends_early_is_told_with_what_it_said() -> None:
    with Measured(["-c", "print('no such thing')"]) as process, pytest.raises(StartError, match="no such thing"):
        process.heard("up")


@pytest.mark.serial
def test_the_bench_prints_one_object_with_every_figure() -> None:
    # A quick run's figures mean nothing on a busy machine, so neither does its status: 0 or 1.
    done = subprocess.run(
        [sys.executable, "-m", "quiesce", "bench", "lifecycle", "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert set(told["figures"]) == KEYS
    assert told["passed"] is (done.returncode == 0)
    assert told["machine"]["cores"] >= 1
    for key, figure in told["figures"].items():
        assert figure["target"] is not None or key == "ticking_cpu_percent"
    assert 0.0 < told["figures"]["critical_us"]["value"] < 10_000
    assert 0.0 < told["figures"]["drain_cpu_seconds"]["value"] < 30
    assert len(told["figures"]["exit_ms"]["samples"]) == 1
