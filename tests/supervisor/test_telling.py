"""What a shutdown tells, and to whom: log, terminal, termination message, systemd, OpenTelemetry."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_scene import HERE, Start, events, processes, report_of, said

from quiesce.lifecycle.events import StillRunning
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.report import Abandoned, PartReport, ShutdownReport
from quiesce.supervisor import systemd, termination

SPANS = re.compile(r"^span (\{.*\})$", re.MULTILINE)


@pytest.fixture
def start() -> Iterator[Start]:
    yield from processes("signal_services")


@pytest.mark.serial
def test_s22_with_less_time_left_the_parts_shrink_and_log_and_report_say_so(start: Start) -> None:
    process = start("hurried", QUIESCE_LOG_FORMAT="json")
    assert process.wait(15) == 75
    told = events(process)
    (requested,) = [event for event in told if event.get("event") == "stop_requested"]
    # 30 s from T0 to SIGKILL in the budget, 3 s are left: a tenth, of the margin as well.
    assert requested["scale"] == pytest.approx(0.1)
    assert requested["available_seconds"] == pytest.approx(2.9, abs=0.01)
    assert requested["level"] == "WARNING"
    assert "only 2.9 s are left, so every part gets 10% of its bound" in requested["message"]
    bounds = {event["part"]: event["bound_seconds"] for event in told if event.get("event") == "part_began"}
    assert bounds["workers"] == pytest.approx(0.8, abs=0.05)
    assert bounds["producers"] == pytest.approx(0.5, abs=0.05)
    (report,) = [event["report"] for event in told if event.get("event") == "shutdown_report"]
    assert report["scale"] == pytest.approx(0.1)
    assert report["available_seconds"] == pytest.approx(2.9, abs=0.01)
    assert report["duration_seconds"] < 2.9
    assert [(r["resource"], r["outcome"]) for r in report["resources"]] == [("pool", "clean")]


@pytest.mark.serial
def test_json_logs_carry_the_fields_of_each_event(start: Start) -> None:
    process = start("reasons", REASON="stop", QUIESCE_LOG_FORMAT="json")
    assert process.wait(10) == 0
    lines = [line for line in process.text().splitlines() if line and not line.startswith("[")]
    told = [json.loads(line) for line in lines]  # every line of the log is one object
    assert all({"time", "level", "logger", "message"} <= set(event) for event in told)
    ended = {event["part"]: event for event in told if event.get("event") == "part_ended"}
    assert set(ended) == {"http", "workers", "producers", "pools", "report"}
    assert ended["pools"]["logger"] == "quiesce.service"
    assert ended["pools"]["message"].startswith("shutdown part pools ended in ")
    assert isinstance(ended["pools"]["duration_seconds"], float)
    assert ended["pools"]["overran"] is False
    (report,) = [event for event in told if event.get("event") == "shutdown_report"]
    assert report["message"] == "shutdown report"
    assert report["report"]["exit_code"] == 0
    # A normal close is never above INFO.
    assert {event["level"] for event in told} == {"INFO"}


@pytest.mark.serial
def test_a_password_is_never_logged(start: Start) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dsn = f"postgresql://someone:hush-hush@127.0.0.1:{probe.getsockname()[1]}/shop?password=hush-hush"
    for style in ("text", "json"):
        process = start(
            "holder", DATABASE_URL=dsn, QUIESCE_LOG_FORMAT=style, QUIESCE_LOG_LEVEL="debug", START_LIMIT="0.5"
        )
        process.wait_for("is not available")
        process.signal()
        assert process.wait(8) == 0
        assert "hush" not in process.text()


@pytest.mark.serial
def test_on_a_terminal_the_report_is_a_table() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "quiesce", "run", "signal_services:reasons"]
    environment = {**os.environ, "PYTHONPATH": str(HERE), "REASON": "stop", "QUIESCE_LOG_LEVEL": "warning"}
    with subprocess.Popen(command, stderr=theirs, env=environment) as process:
        os.close(theirs)
        try:
            assert process.wait(15) == 0
            shown = b""
            while select.select([ours], [], [], 0.5)[0]:
                try:
                    shown += os.read(ours, 65536)
                except OSError:
                    break  # all of it was read, and the other end is gone
        finally:
            process.kill()
            os.close(ours)
    text = shown.decode().replace("\r\n", "\n")
    assert re.search(r"^reasons stopped in \d\.\d\d s of 29 s: the work is done$", text, re.MULTILINE)
    assert re.search(r"^  pools       +\d\.\d{3} s of 5 s$", text, re.MULTILINE)
    assert "  closed     producer: clean" in text
    assert text.rstrip().endswith("exit code  0")


# The termination message.


def a_report(error: str = "") -> ShutdownReport:
    return ShutdownReport(
        service="orders",
        reason="received SIGTERM",
        seconds=3.2,
        available=49,
        exit_code=75,
        parts=[PartReport(Part.HTTP, 0.2, 25, False), PartReport(Part.WORKERS, 20.4, 20, True)],
        workers=[],
        resources=[],
        abandoned=[Abandoned("relay", "iteration", 1)],
        errors=[error] if error else [],
        hung=[StillRunning("worker", "relay", 20.4, "shop/main.py:7 in move > asyncio/tasks.py:9 in sleep", "", "", 1)],
    )


def test_the_termination_message_tells_the_end_in_a_few_lines() -> None:
    assert termination.message_of(a_report("closing pool: OSError: gone")).splitlines() == [
        "orders: exit code 75, received SIGTERM; took 3.20 s of 49 s",
        "error: closing pool: OSError: gone",
        "hung: worker relay, for 20.4 s, at shop/main.py:7 in move > asyncio/tasks.py:9 in sleep",
        "abandoned: 1 iteration (relay)",
        "overran: workers, 20.40 s of 20 s",
        "http: 0.20 s of 25 s",
    ]


def test_a_long_termination_message_is_cut_at_4096_bytes_and_at_a_whole_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setenv("QUIESCE_TERMINATION_LOG", str(path))
    for shift in range(3):
        assert termination.write(termination.message_of(a_report("x" * shift + "€" * 3000)))
        content = path.read_bytes()
        assert 4093 < len(content) <= 4096
        assert content.decode().startswith("orders: exit code 75")
        assert content.decode().endswith("€")


def test_no_termination_message_where_there_is_no_such_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "not-there"
    monkeypatch.setenv("QUIESCE_TERMINATION_LOG", str(path))
    assert termination.write("gone") is False
    assert not path.exists()
    # A pipe that nobody reads would block the end of the process.
    os.mkfifo(path)
    assert termination.write("gone") is False
    monkeypatch.setenv("QUIESCE_TERMINATION_LOG", "")
    assert termination.write("gone") is False


@pytest.mark.serial
@pytest.mark.parametrize(
    ("name", "begun", "status", "first"),
    [
        ("quiet", "waiting", 0, r"quiet: exit code 0, received SIGTERM; took \d\.\d\d s of 29 s"),
        ("thread_in_get", "getting", 70, r"thread-in-get: exit code 70, received SIGTERM"),
        ("no_such_service", "", 78, r"signal_services:no_such_service: exit code 78, service: .* has no service"),
    ],
)
def test_each_end_leaves_its_termination_message(
    start: Start, tmp_path: Path, name: str, begun: str, status: int, first: str
) -> None:
    path = tmp_path / "termination-log"
    path.touch()
    process = start(name, QUIESCE_TERMINATION_LOG=str(path))
    if begun:
        process.wait_for(begun)
        process.signal()
    assert process.wait(8) == status
    assert re.match(first, path.read_text()), path.read_text()


# systemd.


@pytest.mark.serial
@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_systemd_is_told_when_it_is_ready_and_when_it_stops(start: Start, tmp_path: Path, abstract: bool) -> None:
    address = f"@quiesce-test-{uuid.uuid4().hex}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if abstract else address)
        manager.settimeout(30)
        process = start("quiet", NOTIFY_SOCKET=address)
        assert manager.recv(4096).decode() == "READY=1\nSTATUS=ready"
        process.wait_for("waiting")
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(4096)  # nothing of stopping, while nobody has asked
        manager.settimeout(30)
        process.signal()
        told = [manager.recv(4096).decode() for _ in range(2)]
        assert told == [
            "STATUS=not ready: received SIGTERM",
            "STOPPING=1\nSTATUS=stopping: received SIGTERM",
        ]
        assert process.wait(8) == 0


@pytest.mark.serial
def test_a_manager_that_is_gone_is_said_once_and_holds_nothing(start: Start, tmp_path: Path) -> None:
    process = start("quiet", NOTIFY_SOCKET=str(tmp_path / "nobody"))
    process.wait_for("started")
    process.signal()
    assert process.wait(8) == 0
    assert process.text().count("systemd cannot be notified") == 1


def test_without_systemd_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert systemd.from_environment() is None


# OpenTelemetry.


@pytest.mark.serial
def test_s29_the_span_of_the_shutdown_is_flushed_inside_the_part_report(start: Start) -> None:
    process = start("traced")
    process.wait_for("started")
    process.signal()
    assert process.wait(8) == 0
    text = process.text()
    spans = {span["name"]: span for span in map(json.loads, SPANS.findall(text))}
    parts = ["workers", "producers", "pools", "report"]
    assert list(spans) == [*(f"shutdown {part}" for part in parts), "shutdown"]
    whole = spans["shutdown"]
    assert whole["attributes"]["quiesce.exit_code"] == 0
    assert whole["attributes"]["quiesce.reason"] == "received SIGTERM"
    assert all(spans[f"shutdown {part}"]["parent"] == whole["id"] for part in parts)
    assert {"name": "closed", "resource": "pool"} in [
        {"name": event["name"], "resource": event["attributes"].get("resource")} for event in whole["events"]
    ]
    # Sent before the part is over, and long before the interpreter's exit.
    assert text.index("shutdown report {") < text.index("span {") < text.index("shutdown part report ended")
    assert text.index("shutdown part report ended") < text.index("at exit")


@pytest.mark.serial
@pytest.mark.parametrize("how", ["hangs", "raises"])
def test_s29_an_exporter_that_hangs_or_fails_costs_no_more_than_the_part_report(start: Start, how: str) -> None:
    process = start("traced", EXPORTER=how)
    process.wait_for("started")
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait(8) == 0, process.text()
    assert time.monotonic() - began < 4
    report = report_of(process)
    assert report["exit_code"] == 0
    assert said(process, "closed pool") == ["closed pool"]
    if how == "hangs":
        assert "telemetry of OpenTelemetryShutdown was not flushed within" in process.text()
    assert "shutdown part report ended" in process.text()
    assert ", overran" not in process.text()
