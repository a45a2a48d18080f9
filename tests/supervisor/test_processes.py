"""Real processes, real signals, real exit codes."""

import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from process_scene import HERE, Start, in_order, press_until, processes, report_of

from quiesce.testing.loopback import free_port
from quiesce.testing.service_process import ServiceProcess


@pytest.fixture
def start() -> Iterator[Start]:
    yield from processes("small_services")


def get(port: int, path: str) -> tuple[int, str, str]:
    """Status, body, and the Connection header."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode(), answer.headers.get("connection", "")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers.get("connection", "")


def closed_last(report: dict[str, object]) -> None:
    """Pools are closed strictly after the last worker has ended, by the report alone."""
    resources = report["resources"]
    workers = report["workers"]
    assert isinstance(resources, list)
    assert isinstance(workers, list)
    last = max(worker["ended_at_seconds"] for worker in workers if worker["ended_at_seconds"] is not None)
    parts = [resource["part"] for resource in resources]
    assert parts == sorted(parts, key=["producers", "pools"].index)
    assert all(resource["began_at_seconds"] >= last for resource in resources)


@pytest.mark.serial
def test_sigterm_finishes_the_iteration_and_the_request_in_hand_and_ends_with_0(start: Start) -> None:
    port = free_port()
    process = start("web", PORT=str(port), SLOW="0.6", ITERATION="0.3")
    process.wait_for(r"readiness: ready")
    assert get(port, "/health/ready")[0] == 200
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(get, port, "/slow")
        process.wait_for("request began")
        process.wait_for("iteration began")
        process.signal()
        status, body, connection = slow.result()
    assert (status, body) == (200, "ok")
    assert connection == "close"
    assert process.wait(5) == 0
    text = process.text()
    told = text.index("readiness: not ready")
    assert text.count("iteration began") == text.count("iteration ended")
    assert "iteration began" not in text[told:], "no iteration begins after the stop"
    in_order(text, "received signal SIGTERM", "readiness: not ready", "request answered", "closed producer")
    report = report_of(process)
    assert report["exit_code"] == 0
    assert [r["resource"] for r in report["resources"]] == ["producer", "pool"]
    closed_last(report)


def test_what_the_start_built_is_looked_through_for_garbage_once_and_then_no_more(start: Start) -> None:
    process = start("heap")
    process.wait_for("the start is out of the collector's way")
    process.signal()
    assert process.wait(10) == 0


@pytest.mark.serial
def test_a_stuck_worker_is_left_within_the_budget_and_the_pool_is_still_closed(start: Start) -> None:
    process = start("stuck")
    process.wait_for("the worker began")
    began = time.monotonic()
    process.signal()
    assert process.wait(8) == 75
    assert time.monotonic() - began < 6
    report = report_of(process)
    assert report["abandoned"] == [{"worker": "never_ends", "what": "iteration", "count": 1}]
    assert "closed pool" in process.text()


@pytest.mark.parametrize("how", [{}, {"BY_SYSTEM_EXIT": "1"}], ids=["exception", "SystemExit"])
def test_a_worker_that_dies_takes_the_same_path_and_ends_with_1(start: Start, how: dict[str, str]) -> None:
    process = start("crash", **how)
    assert process.wait(8) == 1
    text = process.text()
    assert "closed pool" in text
    in_order(text, "readiness: not ready", "draining", "closing", "closed pool", "shutdown report")
    report = report_of(process)
    assert "worker dies failed" in report["reason"]


def test_a_server_port_in_use_takes_the_same_path_and_ends_with_1(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start("web", PORT=str(port))
        assert process.wait(8) == 1
    text = process.text()
    assert re.search(rf"port {port} on 127\.0\.0\.1 is taken by another process", text)
    report = report_of(process)
    assert report["exit_code"] == 1
    assert "readiness: not ready" in text


@pytest.mark.serial
def test_sigterm_during_the_start_closes_only_what_was_opened(start: Start) -> None:
    process = start("slow_start")
    process.wait_for("starting slowly")
    process.signal()
    assert process.wait(5) == 0
    text = process.text()
    assert "closed first" in text
    assert "opened second" not in text
    assert "readiness: ready" not in text


@pytest.mark.serial
def test_an_early_sigterm_is_remembered_and_nothing_starts(start: Start) -> None:
    process = start("early", SIGNAL_AT_IMPORT="1")
    assert process.wait(5) == 0
    text = process.text()
    assert "signal sent at import" in text
    assert "received signal SIGTERM" in text
    assert "the start function ran" not in text


@pytest.mark.serial
def test_a_second_signal_aborts_in_order_but_a_doubled_one_does_not(start: Start) -> None:
    process = start("web", ITERATION="30")
    process.wait_for("iteration began")
    process.signal()
    process.wait_for("shutdown part workers began")
    first = time.monotonic()
    # One press of Ctrl-C may arrive as two signals: within a second they count as one.
    process.signal(signal.SIGINT)
    assert process.wait(5) == 75
    assert time.monotonic() - first > 0.9, "the bound of the worker decided, not the doubled signal"

    process = start("stuck")
    process.wait_for("the worker began")
    process.signal()
    process.wait_for("shutdown part workers began")
    press_until(process, lambda: process.find("abort requested") is not None)
    assert process.wait(5) == 75
    assert "abort requested" in process.text()
    assert "closed pool" in process.text()


@pytest.mark.serial
def test_the_third_signal_leaves_with_128_and_its_number(start: Start) -> None:
    process = start("patient")
    process.wait_for("the worker began")
    process.signal()
    process.wait_for("blocking the loop")
    press_until(process, lambda: not process.alive)
    assert process.wait(1) == 128 + signal.SIGINT
    assert process.report() is None, "it left without a report: somebody asked three times"


@pytest.mark.serial
def test_a_blocked_loop_ends_at_the_hard_deadline_with_70_and_every_stack(start: Start) -> None:
    process = start("blocked")
    process.wait_for("the worker began")
    process.signal()
    assert process.wait(5) == 70
    text = process.text()
    assert "in blocks" in text, "the stack shows where it hangs"
    report = report_of(process)
    assert report["exit_code"] == 70


@pytest.mark.serial
def test_a_critical_section_outlives_the_cancel_of_its_caller_and_holds_back_the_closers(start: Start) -> None:
    process = start("section")
    process.wait_for("charging")
    process.signal()
    assert process.wait(5) == 0
    text = process.text()
    in_order(text, "received signal", "] charged", "closed pool")
    assert "the caller went on" not in text


@pytest.mark.serial
def test_a_stuck_closer_does_not_keep_the_next_one_from_being_called(start: Start) -> None:
    process = start("stuck_closer")
    process.wait_for("started")
    process.signal()
    assert process.wait(6) == 75
    report = report_of(process)
    assert [(r["resource"], r["outcome"]) for r in report["resources"]] == [
        ("stuck producer", "overran"),
        ("pool", "clean"),
    ]


def test_bad_services_are_refused_with_78_and_one_line(tmp_path: Path) -> None:
    for target, said in [
        ("nonsense", "takes MODULE:SERVICE"),
        ("no_such_module:x", "no module 'no_such_module'"),
        ("../small_services:web", "takes the module's name and no path"),
        ("small_services:missing", "has no service 'missing'; it has"),
    ]:
        with ServiceProcess(target, environment={"PYTHONPATH": str(HERE)}) as process:
            assert process.wait(8) == 78
            assert said in process.text()
            assert "Traceback" not in process.text()


def test_a_verb_whose_extra_is_missing_names_it(tmp_path: Path) -> None:
    # A module of that name that cannot be imported stands in front of the real one.
    (tmp_path / "asyncpg.py").write_text("raise ModuleNotFoundError(\"No module named 'asyncpg'\", name='asyncpg')")
    command = [sys.executable, "-m", "quiesce", "outbox", "schema", "show"]
    with ServiceProcess(command, environment={"PYTHONPATH": str(tmp_path)}) as process:
        assert process.wait(8) == 1
        assert "needs asyncpg, which is not installed: pip install 'quiesce[postgres]'" in process.text()
        assert "Traceback" not in process.text()
