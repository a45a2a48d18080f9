"""The relay's bench: its arithmetic, and that it runs on real servers."""

import json
import subprocess
import sys

import pytest

from quiesce.bench.relay_job import Job
from quiesce.bench.relay_latency import Latency
from quiesce.bench.relay_measures import Throughput
from quiesce.bench.relay_run import Outcome, latency_lines


def throughput(ours: tuple[float, ...], bare: tuple[float, ...]) -> Throughput:
    return Throughput("log", 500, ours, bare, 4.0, 3.0)


def test_the_medians_are_compared() -> None:
    one = throughput((80.0, 74.0, 9000.0), (100.0, 1.0, 105.0))
    assert one.ratio == 0.8
    assert one.passed
    assert "pass" in one.line()
    assert not throughput((74.0,), (100.0,)).passed


def test_one_figure_that_misses_fails_the_whole() -> None:
    kept = throughput((80.0,), (100.0,))
    good = Latency(p50=1.9, p99=4.9, events=100, busy_share=0.1, idle_share=0.001)
    assert Outcome({"log": kept}, good).passed
    assert not Outcome({"log": kept}, Latency(2.1, 4.9, 100, 0.1, 0.001)).passed
    assert not Outcome({"log": throughput((70.0,), (100.0,))}, good).passed
    assert [kept for _, _, kept in latency_lines(Latency(2.1, 5.1, 1, 0.2, 0.02))] == [False] * 4


def test_a_job_survives_its_way_to_the_process() -> None:
    job = Job("postgresql://x", "127.0.0.1:1", "t", "row", 10)
    assert Job.loads(job.dumps()) == job
    assert job.on("other").dsn == "other"


@pytest.mark.serial
@pytest.mark.parametrize("store", ["row"])
def test_a_quick_run_prints_one_object_with_every_figure(store: str) -> None:
    # A quick run's figures mean nothing on a busy machine, so neither does its status: 0 or 1.
    command = ["bench", "relay", "--quick", "--json", "--store", store, "--broker", "tansu", "--events", "2000"]
    done = subprocess.run(
        [sys.executable, "-m", "quiesce", *command], capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["passed"] is (done.returncode == 0), done.stdout
    measured = told["stores"][store]
    assert measured["events_per_second"] > 0
    assert measured["ratio"] == pytest.approx(measured["events_per_second"] / measured["bare_events_per_second"], 0.01)
    assert told["latency_ms"]["events"] > 100
    assert 0 < told["latency_ms"]["p50"] <= told["latency_ms"]["p99"]
    assert "PostgreSQL" in told["machine"]["servers"]
    assert "the bare loop" in done.stderr, "progress is shown"


def test_a_bad_number_is_one_line_and_78_or_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quiesce", "bench", "relay", "--page", "0"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "--page" in done.stderr
    assert "takes a whole number, 1 or more" in done.stderr
