"""What hangs before a stop, and what is aborted by one. Real processes and signals."""

import re
import socket
import sys
from collections.abc import Iterator

import pytest
from process_scene import HERE, Start, in_order, press_until, processes, report_of, said

from quiesce.testing.service_process import ServiceProcess


@pytest.fixture
def start() -> Iterator[Start]:
    yield from processes("giving_up_services")


@pytest.mark.parametrize(("name", "inside"), [("blocked_worker", "worker"), ("blocked_start", "start")])
def test_a_loop_that_was_blocked_before_the_signal_is_left_at_the_hard_deadline(
    start: Start, name: str, inside: str
) -> None:
    process = start(name)
    process.wait_for("blocking")
    process.signal()
    assert process.wait(8) == 70, process.text()
    report = report_of(process)
    assert report["exit_code"] == 70
    assert report["reason"] == "received a signal, and the event loop was blocked"
    assert report["duration_seconds"] == pytest.approx(2.2, abs=0.5), "from the handler's instant"
    assert inside in [hang["what"] for hang in report["hung"]]
    assert re.search(r'File ".*giving_up_services.py", line \d+ in block', process.text()), "its stack"


def test_t0_is_the_instant_of_the_handler_however_long_the_loop_was_blocked(start: Start) -> None:
    process = start("blocked_for_a_while", BLOCKING="1.5")
    process.wait_for("blocking")
    process.signal()
    assert process.wait(8) == 0, process.text()
    report = report_of(process)
    assert report["reason"] == "received SIGTERM"
    assert report["duration_seconds"] > 1.0
    in_order(process.text(), "blocks no more", "received signal", "readiness: not ready", "closed pool")


def test_a_limit_that_is_told_later_brings_the_hard_deadline_forward_and_keeps_the_margin(start: Start) -> None:
    process = start("hastened")
    # 29 s by the budget.
    assert process.wait(8) == 70, process.text()
    report = report_of(process)
    assert report["reason"] == "one"
    assert report["available_seconds"] == pytest.approx(1.45, abs=0.02)
    assert report["duration_seconds"] >= 1.4


def test_an_import_that_hangs_is_left_at_the_hard_deadline_of_the_default_budget(start: Start) -> None:
    # The default budget has 49 s; the same with a smaller one.
    code = (
        "import sys\n"
        "from quiesce import Budget\n"
        "from quiesce.cli import main, run\n"
        "run.Budget = lambda: Budget(grace_period=2, prestop=0, http=0.2, workers=0.2, producers=0.2, pools=0.2,"
        " report=0.2, margin=0.2)\n"
        "sys.exit(main.main(['run', 'giving_up_services:blocked_start']))\n"
    )
    environment = {"PYTHONPATH": str(HERE), "IMPORT": "1"}
    with ServiceProcess([sys.executable, "-c", code], environment=environment, name="import") as process:
        process.wait_for("blocking")
        process.signal()
        assert process.wait(8) == 70, process.text()
        text = process.text()
    assert "exit code 70, a stop was requested and its import did not end" in text
    assert re.search(r'File ".*giving_up_services.py", line \d+ in block', text)


def test_a_signal_during_a_slow_import_still_ends_with_0(start: Start) -> None:
    process = start("blocked_for_a_while", IMPORT="1", BLOCKING="0.5")
    process.wait_for("blocking")
    process.signal()
    assert process.wait(8) == 0, process.text()
    assert "opened" not in process.text()
    assert report_of(process)["exit_code"] == 0


def test_a_start_that_eats_its_cancel_is_left_named_and_counts_as_abandoned(start: Start) -> None:
    process = start("eats_in_start")
    process.wait_for("starting")
    process.signal()
    assert process.wait(8) == 75, process.text()
    assert said(process, "ate a cancel")[:2] == ["ate a cancel"] * 2, "once at the stop, once when time is nearly over"
    assert said(process, "closed .*") == ["closed pool"]
    report = report_of(process)
    assert {"worker": "start", "what": "start that did not end", "count": 1} in report["abandoned"]
    (hang,) = [hang for hang in report["hung"] if hang["what"] == "start"]
    assert "in starts_for_ever" in hang["where"]


@pytest.mark.parametrize("name", ["eats_in_calm_start", "undoes_in_calm_start"])
def test_a_second_signal_interrupts_a_start_again_and_closes_a_second_later(start: Start, name: str) -> None:
    process = start(name)
    process.wait_for("starting")
    process.signal()
    process.wait_for("received signal SIGTERM")
    press_until(process, lambda: process.find("abort requested") is not None)
    # 21 s of the drain are left.
    status = process.wait(6)
    report = report_of(process)
    assert said(process, "closed .*") == ["closed pool"]
    if name == "undoes_in_calm_start":
        assert status == 0, "the second cancel ended it"
    else:
        assert status == 75
        assert [hang["what"] for hang in report["hung"]] == ["start"]


def test_what_an_interrupted_opening_undoes_is_done_before_the_pool_is_closed(start: Start) -> None:
    process = start("undoes_an_opening", UNDOING="1.5")
    process.wait_for("starting")
    process.signal()
    assert process.wait(8) == 0, process.text()
    in_order(process.text(), "undoing", "] undone", "closed pool")


def test_an_interrupted_opening_that_takes_too_long_is_cancelled_again_before_the_pool_is_closed(start: Start) -> None:
    process = start("undoes_an_opening", UNDOING="3600")
    process.wait_for("starting")
    process.signal()
    assert process.wait(8) == 0, process.text()
    in_order(process.text(), "undoing", "closed pool")
    assert "] undone" not in process.text()
    assert report_of(process)["hung"] == [], "it ended when it was torn"


def test_an_interrupted_opening_that_never_ends_is_left_and_named(start: Start) -> None:
    process = start("undoes_an_opening", UNDOING="never")
    process.wait_for("starting")
    process.signal()
    status = process.wait(8)
    report = report_of(process)
    assert said(process, "closed .*") == ["closed pool"]
    left = [hang for hang in report["hung"] if hang["what"] == "opening"]
    assert [hang["name"] for hang in left] == ["second"]
    assert "in undone_with_the_pool" in left[0]["where"]
    assert {"worker": "second", "what": "start that did not end", "count": 1} in report["abandoned"]
    assert status == 75


@pytest.mark.parametrize("name", ["tight_worker", "tight_section"])
def test_without_slack_what_is_aborted_still_rolls_back_before_the_pool_is_closed(start: Start, name: str) -> None:
    process = start(name)
    process.wait_for("working")
    process.signal()
    assert process.wait(8) == 75, process.text()
    in_order(process.text(), "unwinding", "rolled back", "closed pool")
    (worker,) = report_of(process)["workers"]
    assert worker["outcome"] == "aborted", "it heeded, so it was not abandoned"


def test_without_slack_a_request_that_is_aborted_rolls_back_before_the_pool_is_closed(start: Start) -> None:
    process = start("tight_http")
    process.wait_for("readiness: ready")
    port = int(process.wait_for(r"port (\d+)").group(1))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        process.wait_for("working")
        process.signal()
        assert process.wait(8) == 75, process.text()
    in_order(process.text(), "unwinding", "rolled back", "closed pool")


def test_a_section_that_a_second_signal_tears_rolls_back_before_the_pool_is_closed(start: Start) -> None:
    process = start("section_in_an_abort")
    process.wait_for("working")
    process.signal()
    process.wait_for("shutdown part workers began")
    press_until(process, lambda: process.find("abort requested") is not None)
    assert process.wait(6) == 75, process.text()
    in_order(process.text(), "abort requested", "unwinding", "rolled back", "closed pool")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("port as text", "s.http port: got '8080', takes a whole number from 0 to 65535"),
        ("port out of range", "s.http port: got 65536"),
        ("unknown", r"uvicorn does not take its settings \(nosuch\)"),
        ("no such file", r"uvicorn does not take its settings \(ssl_certfile\): .*No such file"),
    ],
)
def test_settings_of_http_that_no_server_takes_end_with_78_and_one_line(start: Start, settings: str, told: str) -> None:
    process = start("bad_http", SETTINGS=settings)
    assert process.wait(8) == 78, process.text()
    assert re.search(told, process.text())
    assert "Traceback" not in process.text()
