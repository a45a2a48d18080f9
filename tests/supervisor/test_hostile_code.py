"""The user's code and his libraries, at their worst: the service closes in order all the same, and tells."""

import contextlib
import http.client
import json
import signal
import socket
import sys
from collections.abc import Iterator

import pytest
from process_scene import HERE, Start, in_order, processes, report_of

from quiesce.testing.service_process import ServiceProcess


@pytest.fixture
def start() -> Iterator[Start]:
    yield from processes("hostile_services")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def readiness(port: int) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", "/health/ready")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["reason"]


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("in_a_section", "worker leaving: SystemExit: 3"),
        ("in_an_idle_wait", "worker leaving: SystemExit: 3"),
        ("in_a_task", "a task or a callback: SystemExit: 3"),
        ("in_a_group_inside_a_section", "a task or a callback: SystemExit: 3"),
        ("in_a_callback", "a task or a callback: SystemExit: 3"),
        ("by_the_keyboard", "a task or a callback: KeyboardInterrupt"),
    ],
)
def test_an_exit_anywhere_stops_the_service_in_order_and_as_failed(start: Start, where: str, error: str) -> None:
    process = start("exits", WHERE=where)
    # Not its own status, such as 3: that would say nothing of how the service ended.
    assert process.wait(15) == 1
    in_order(process.text(), "opened pool", "worker over", "closed pool", "shutdown report")
    report = report_of(process)
    assert error in report["errors"]
    assert report["exit_code"] == 1


def test_an_exit_from_a_hand_back_is_told_and_the_pool_is_closed(start: Start) -> None:
    process = start("hands_back")
    process.wait_for("working")
    process.signal()
    assert process.wait(10) == 75
    in_order(process.text(), "closed pool", "shutdown report")
    assert report_of(process)["errors"] == ["worker stays: hand_back: SystemExit: 3"]


def test_an_exit_from_a_waker_keeps_nobody_from_being_told_to_stop(start: Start) -> None:
    process = start("waked")
    process.wait_for("working")
    process.signal()
    assert process.wait(10) == 0
    in_order(process.text(), "worker over", "closed pool", "shutdown report")


def test_an_exit_from_a_worker_that_is_asked_for_its_progress_is_an_answer(start: Start) -> None:
    port = free_port()
    process = start("cannot_say", PORT=str(port))
    process.wait_for("working")
    status, reason = readiness(port)
    assert (status, reason) == (503, "worker relay: cannot say whether it makes progress: SystemExit: 3")
    process.signal()
    assert process.wait(10) == 0
    in_order(process.text(), "worker over", "closed pool", "shutdown report")


@pytest.mark.parametrize("how", ["WRAPS", "CLOSES"])
def test_without_a_standard_error_that_is_a_file_nothing_is_left_out(start: Start, how: str) -> None:
    process = start("wraps", **{how: "1"})
    process.wait_for("working")
    process.signal()
    assert process.wait(10) == 0
    in_order(process.text(), "worker over", "closed pool")


@pytest.mark.parametrize("how", ["WRAPS", "CLOSES"])
def test_without_a_standard_error_that_is_a_file_the_hard_deadline_holds(start: Start, how: str) -> None:
    process = start("wraps", **{how: "1", "HANGS": "1"})
    process.wait_for("working")
    process.signal()
    process.wait_for("blocks the loop")
    assert process.wait(10) == 70
    # The stacks go to the descriptor that was standard error when the service began.
    assert "in blocks" in process.text()


@pytest.mark.parametrize("hangs", [False, True])
def test_a_service_that_is_started_without_a_standard_error(hangs: bool) -> None:
    command = f"exec {sys.executable} -P -m quiesce run hostile_services:wraps 2>&-"
    environment = {"PYTHONPATH": str(HERE), **({"HANGS": "1"} if hangs else {})}
    with ServiceProcess(["sh", "-c", command], environment=environment) as process:
        process.wait_for("working")
        process.signal()
        if hangs:
            process.wait_for("blocks the loop")
            assert process.wait(10) == 70
        else:
            assert process.wait(10) == 0
            # The log has gone where somebody reads.
            in_order(process.text(), "received signal SIGTERM", "worker over", "closed pool", "shutdown report")


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "CancelledError"])
@pytest.mark.parametrize("on", ["SignalReceived", "StopRequested", "PartBegan", "PhaseChanged", "ShutdownEnded"])
def test_whatever_an_observer_raises_nothing_is_left_out(start: Start, kind: str, on: str) -> None:
    process = start("observed", KIND=kind, ON=on)
    process.wait_for("working")
    process.signal()
    assert process.wait(10) == 0
    in_order(process.text(), "worker over", "closed pool", "shutdown report")
    assert "observer <hostile_services.Raises object" in process.text()


def test_forked_children_are_ended_by_the_signals_that_are_meant_for_them(start: Start) -> None:
    process = start("forks")
    process.wait_for("children over", within=30)
    in_order(process.text(), f"terminate: {-signal.SIGTERM}", "interrupt: 1")
    # And the parent has kept its own.
    process.signal()
    assert process.wait(10) == 0
    in_order(process.text(), "received signal SIGTERM", "worker over", "closed pool", "shutdown report")


def test_a_worker_that_returns_unasked_is_told_and_makes_the_service_not_ready(start: Start) -> None:
    port = free_port()
    process = start("returns", PORT=str(port))
    process.wait_for("WARNING .*worker consume returned without being told to stop")
    assert readiness(port) == (503, "worker consume: returned without being told to stop")
    assert process.alive, "the other workers go on"
    process.signal()
    assert process.wait(10) == 0
    in_order(process.text(), "worker over", "closed pool", "shutdown report")
