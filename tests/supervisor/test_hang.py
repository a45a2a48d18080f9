"""The hang report, SIGQUIT, and the end of patience. Real processes."""

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from process_scene import HERE, Start, events, processes, report_of, said

from quiesce.testing.service_process import ServiceProcess

pytestmark = pytest.mark.serial

SERVICES = (HERE / "signal_services.py").read_text().splitlines()


@pytest.fixture
def start() -> Iterator[Start]:
    yield from processes("signal_services")


def line_of(text: str) -> str:
    """A place in `signal_services.py`, as a hang report names it."""
    (number,) = [index for index, line in enumerate(SERVICES, 1) if text in line]
    return f"{HERE.name}/signal_services.py:{number} in "


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def hung(report: dict[str, Any], what: str) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in report["hung"] if entry["what"] == what}


def test_at_half_at_nine_tenths_and_at_the_end_of_a_bound_it_says_who_hangs_and_where(start: Start) -> None:
    port = free_port()
    process = start("hangs", PORT=str(port), QUIESCE_LOG_FORMAT="json")
    process.wait_for('"event": "readiness_changed", "ready": true')
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"GET /never?token=hush HTTP/1.1\r\nHost: x\r\n\r\n")
        process.wait_for("request began")
        process.wait_for("getting")
        process.signal()
        assert process.wait(15) == 70  # the thread in `to_thread` holds the interpreter
    assert "hush" not in process.text()
    told = [event for event in events(process) if event.get("event") == "still_running"]
    shares = [(event["share"], event["level"]) for event in told if event["name"] == "never_ends"]
    assert [share for share, _ in shares[:3]] == [0.5, 0.9, 1.0]
    assert [level for _, level in shares[:3]] == ["INFO", "WARNING", "WARNING"]

    by_name = {event["name"]: event for event in told if event["share"] == 0.5}
    assert by_name["never_ends"]["where"].startswith(line_of("the line that is to be named") + "never_ends > ")
    assert by_name["never_ends"]["where"].endswith("in sleep")
    assert 0.4 < by_name["never_ends"]["age_seconds"] < 1.0
    # Through the section's own task, and from there through the group's.
    assert by_name["pays"]["section"] == "charge payment"
    assert by_name["pays"]["where"].startswith(line_of("asyncio.TaskGroup()")[:-4])
    assert (by_name["GET /never"]["what"], by_name["stuck"]["what"]) == ("request", "closer")
    assert by_name["GET /never"]["where"].startswith(line_of("# the request hangs") + "app > ")
    assert by_name["stuck"]["where"].startswith(line_of("# the closer hangs") + "close > ")
    assert by_name["stuck"]["age_seconds"] > 0.2
    # Which thread it is cannot be known from the task; where it stands can.
    assert line_of("nothing.get()") + "takes" in by_name["asks_a_thread"]["where"]


def test_the_report_names_what_hung_and_where_it_stood_in_the_end(start: Start) -> None:
    process = start("hangs")
    # A worker that has not begun when the stop comes never begins.
    process.wait_for("never ending")
    process.wait_for("getting")
    process.signal()
    assert process.wait(15) == 70  # the thread in `to_thread` holds the interpreter
    report = report_of(process)
    worker = hung(report, "worker")["never_ends"]
    # It swallowed its cancel, and went on to the next line: that is the one that counts.
    assert worker["where"].startswith(line_of("asyncio.Event().wait()") + "never_ends")
    # And so it is with the others: a section that was aborted has ended, this thread has not.
    assert line_of("nothing.get()") + "takes" in hung(report, "thread")["asyncio_0"]["where"]


def test_sigquit_says_where_everything_stands_and_ends_nothing(start: Start) -> None:
    process = start("asked")
    process.wait_for("waiting")
    for times in (1, 2):
        process.signal(signal.SIGQUIT)
        process.wait_for(rf"(?s)(still running: worker waits.*){{{times}}}")
    text = process.text()
    assert re.search(
        rf"still running: worker waits, at {re.escape(line_of('await stop.wait()  # the worker waits'))}", text
    )
    # The stacks of the threads come first, from C code, whatever hangs.
    assert text.index("Current thread") < text.index("still running")
    assert process.alive
    process.signal()
    assert process.wait(8) == 0


def test_sigquit_shows_the_stacks_of_a_loop_that_is_blocked_by_c_code_with_the_interpreter_lock(start: Start) -> None:
    process = start("asked", BLOCKING="1")
    process.wait_for("blocking the loop")
    process.signal(signal.SIGQUIT)
    process.wait_for(r'File ".*signal_services.py", line \d+ in blocks', within=2)
    assert not said(process, "the loop goes on"), "it was told while the lock was held"
    process.wait_for("still running: worker", within=30)
    process.signal()
    assert process.wait(10) == 0


@pytest.mark.parametrize(("held", "status"), [({"HOLD": "1"}, 1), ({}, 70)], ids=["holds the lock", "lets go of it"])
def test_c_code_that_blocks_the_loop_is_left_at_the_hard_deadline(
    start: Start, held: dict[str, str], status: int
) -> None:
    process = start("holds_the_gil", **held)
    process.wait_for("waiting")
    process.signal()
    process.wait_for("calling C")
    began = time.monotonic()
    # grace 2.4 - margin 0.2 = 2.2 s, and half a second more for the backstop.
    assert process.wait(6) == status
    assert time.monotonic() - began < 4.5
    assert re.search(r'File ".*signal_services.py", line \d+ in calls_c', process.text())
    report = process.report()
    if status == 70:
        assert report is not None
        assert report["exit_code"] == 70
        assert "in calls_c" in hung(report, "worker")["calls_c"]["where"]
    else:
        assert report is None, "no Python ran, so nobody could write one"


def read_until(pipe: IO[bytes], mark: bytes, within: float = 10.0) -> None:
    """Reads what a process writes until the mark has come, and nothing after that."""
    end, got = time.monotonic() + within, b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while mark not in got:
            assert selector.select(max(0.0, end - time.monotonic())), got
            read = os.read(pipe.fileno(), 4096)
            assert read, got
            got += read


def test_a_reader_of_the_log_that_hangs_does_not_hold_the_hard_deadline() -> None:
    """Its standard error is a pipe that nobody empties."""
    command = [sys.executable, "-P", "-m", "quiesce", "run", "signal_services:mute"]
    environment = {"PYTHONPATH": str(HERE), "PATH": "/usr/bin:/bin", "QUIESCE_TERMINATION_LOG": ""}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stderr is not None
            read_until(process.stderr, b"waiting")
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(8) == 70
            assert time.monotonic() - began < 5
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["eats", "shielded"])
def test_s16_a_task_that_eats_cancels_is_named_within_the_budget_and_the_status_is_70(start: Start, kind: str) -> None:
    process = start("eats_the_cancel", TASKS=kind)
    process.wait_for("started")
    began = time.monotonic()
    process.signal()
    # It is named before the report is written, so report and status agree. Nobody knows what it does, and a loop
    # that waits for its tasks would wait for ever: not one of the things that are handed back.
    assert process.wait(8) == 70, process.text()
    assert time.monotonic() - began < 5.5
    report = report_of(process)
    assert report["exit_code"] == 70
    assert process.text().count("shutdown report") == 1, "it ended by itself, and not at the hard deadline"
    assert report["abandoned"] == [
        {"worker": "task glutton", "what": "task that did not end when cancelled", "count": 1}
    ]
    assert list(hung(report, "task")) == ["glutton"], "one that ends when it is cancelled is nobody's business"
    assert line_of("await asyncio.sleep(3600)  # eaten") + "eats" in hung(report, "task")["glutton"]["where"]
    assert [r["outcome"] for r in report["resources"]] == ["clean"]
    assert not report["parts"]["report"]["overran"]


def test_s16_a_task_behind_a_shield_is_cancelled_itself_and_one_that_ends_then_leaves_a_clean_stop(
    start: Start,
) -> None:
    process = start("eats_the_cancel", TASKS="")
    process.wait_for("started")
    process.signal()
    assert process.wait(8) == 0, process.text()
    assert report_of(process)["hung"] == []


def test_s16_one_that_blocks_the_teardown_is_left_at_the_hard_deadline_with_70(start: Start) -> None:
    process = start("eats_the_cancel", TASKS="eats", BLOCKING="1")
    process.wait_for("started")
    process.signal()
    assert process.wait(9) == 70, process.text()
    report = report_of(process)
    assert report["exit_code"] == 70
    assert re.search(r'File ".*signal_services.py", line \d+ in eats', process.text())
    assert "closed pool" in process.text()


def test_s19_a_thread_in_queue_get_is_named_and_the_process_leaves_at_the_hard_deadline(start: Start) -> None:
    process = start("thread_in_get")
    process.wait_for("getting")
    began = time.monotonic()
    process.signal()
    assert process.wait(6) == 70, process.text()
    assert time.monotonic() - began < 4
    text = process.text()
    # First the report after an orderly close, then that of the hard deadline: the interpreter waited for the thread.
    assert text.count("shutdown report") == 2
    assert "closed pool" in text
    report = report_of(process)
    assert report["exit_code"] == 70
    (thread,) = hung(report, "thread").values()
    assert line_of("nothing.get()") + "takes" in thread["where"]
    assert re.search(r'File ".*signal_services.py", line \d+ in takes', text), "the stacks are dumped"


def test_a_connection_that_a_hanging_worker_holds_is_named(tmp_path: Path, database: str) -> None:
    with ServiceProcess(
        "signal_services:holder", environment={"PYTHONPATH": str(HERE), "DATABASE_URL": database}
    ) as process:
        process.wait_for("holding")
        process.signal()
        process.wait(12)
        holds = hung(report_of(process), "worker")["holds_a_connection"]["holds"]
        assert holds.startswith("database: a connection since signal_services:")
        assert "in holds_a_connection" in holds


@pytest.mark.parametrize("adapter", ["asyncpg", "psycopg", "sqlalchemy"])
def test_s6_who_never_lets_go_is_named_though_its_connection_was_cut(adapter: str, database: str) -> None:
    environment = {"PYTHONPATH": str(HERE), "DATABASE_URL": database, "ADAPTER": adapter}
    with ServiceProcess("signal_services:never_lets_go", environment=environment) as process:
        process.wait_for("holding")
        process.signal()
        assert process.wait(12) == 75, process.text()
        report = report_of(process)
        (closed,) = report["resources"]
        assert closed["outcome"] == "forced"
        assert "1 connection(s) not given back: signal_services:" in closed["detail"]
        assert "in keeps_what_it_took" in closed["detail"]
        # The last look at the worker comes when its connection is gone already.
        holds = hung(report, "worker")["keeps_what_it_took"]["holds"]
        assert holds.startswith("database: a connection since signal_services:"), holds
        assert "in keeps_what_it_took" in holds


def test_a_second_signal_says_where_each_stood_and_that_no_bound_was_over(start: Start) -> None:
    process = start("patient", QUIESCE_LOG_FORMAT="json")
    process.wait_for("sleeping")
    process.signal()
    process.wait_for('"event": "part_began", "part": "workers"')
    until = time.monotonic() + 5
    while process.find("abort_requested") is None:
        assert time.monotonic() < until, process.text()
        process.signal(signal.SIGINT)  # those inside the debounce count for nothing
        time.sleep(0.05)
    assert process.wait(8) == 75
    (told,) = [event for event in events(process) if event.get("event") == "still_running"]
    assert (told["name"], told["share"]) == ("sleeps_through_the_stop", None)
    assert told["message"].startswith("still running: worker sleeps_through_the_stop, for ")
    (report,) = [event["report"] for event in events(process) if event.get("event") == "shutdown_report"]
    assert report["hung"] == [], "it ended when it was aborted"
