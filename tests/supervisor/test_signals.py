"""The signal ladder: early, repeated, stolen, and at any moment of the start. Real processes and signals."""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from process_scene import HERE, Start, events, processes, report_of, said
from signal_services import MOMENTS

from quiesce import Service, Stop
from quiesce.supervisor.definition import ServiceDefinition
from quiesce.supervisor.runner import Runner
from quiesce.supervisor.signals import SignalLadder
from quiesce.testing.process_guard import children_of
from quiesce.testing.service_process import ServiceProcess

pytestmark = pytest.mark.serial


@pytest.fixture
def start() -> Iterator[Start]:
    yield from processes("signal_services")


def sequence(process: ServiceProcess) -> tuple[list[str], list[str], list[str]]:
    """From the request to stop on: phases, parts as they began, parts as they ended."""
    told = events(process)
    # Readiness goes first, so the sequence begins with it.
    told = told[[i for i, e in enumerate(told) if e.get("event") == "readiness_changed" and not e["ready"]][-1] :]
    return (
        [event["phase"] for event in told if event.get("event") == "phase_changed"],
        [event["part"] for event in told if event.get("event") == "part_began"],
        [event["part"] for event in told if event.get("event") == "part_ended"],
    )


def test_s10_every_reason_to_stop_shows_the_same_sequence_of_phases(start: Start) -> None:
    json_logs = {"QUIESCE_LOG_FORMAT": "json"}
    by_signal = {}
    for name, number in (("SIGTERM", signal.SIGTERM), ("SIGINT", signal.SIGINT)):
        by_signal[name] = start("reasons", **json_logs)
        by_signal[name].wait_for("waiting")
        by_signal[name].signal(number)
        assert by_signal[name].wait(10) == 0
    stopped, crashed = start("reasons", REASON="stop", **json_logs), start("reasons", REASON="crash", **json_logs)
    assert stopped.wait(10) == 0
    assert crashed.wait(10) == 1
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused = start("reasons", PORT=str(taken.getsockname()[1]), **json_logs)
        assert refused.wait(10) == 1

    expected = (["draining", "closing", "stopped"], ["workers", "http", "producers", "pools", "report"])
    for process in (*by_signal.values(), stopped, crashed):
        phases, began, ended = sequence(process)
        assert (phases, began) == expected, process.text()
        assert ended[-3:] == ["producers", "pools", "report"]
        assert sorted(ended) == sorted(began)
        assert said(process, "closed .*") == ["closed producer", "closed pool"]
    # Nothing ever listened there, so there is nothing to drain; all else is the same.
    phases, began, ended = sequence(refused)
    assert (phases, began) == (expected[0], [part for part in expected[1] if part != "http"])
    assert ended == began


@pytest.mark.parametrize("moment", MOMENTS)
def test_s24_sigterm_at_any_moment_of_the_start_closes_what_was_opened_in_reverse(start: Start, moment: str) -> None:
    process = start("starts", MOMENT=moment)
    if moment == "none":
        process.wait_for("waiting")
        process.signal()
    assert process.wait(10) == 0, process.text()
    text = process.text()
    assert "received signal SIGTERM" in text
    opened = [line.removeprefix("opened ") for line in said(process, "opened .*")]
    closed = [line.removeprefix("closed ") for line in said(process, "closed .*")]
    assert closed == opened[::-1], "all that was opened is closed, in reverse, and nothing else"
    if moment == "none":
        assert opened == ["a", "b", "c"]
        return
    assert "readiness: ready" not in text
    assert "waiting" not in text, "no worker began"
    begun = [line.removeprefix("opening ") for line in said(process, "opening .*")]
    last = {"in a": "a", "after a": "a", "in b": "ab", "after b": "ab", "in c": "abc", "last line": "abc"}
    assert begun == list(last.get(moment, "")), "no further starter begins"
    # A starter that was cancelled in the middle has closed itself; it is none of the report's.
    assert [r["resource"] for r in report_of(process)["resources"]] == closed
    assert report_of(process)["exit_code"] == 0


async def test_s24_a_stop_at_every_single_turn_of_the_loop_during_the_start() -> None:
    """The same as above without processes, and so at each turn that there is."""
    for turn in itertools.count():
        began: list[str] = []
        opened: list[str] = []
        closed: list[str] = []

        @contextlib.asynccontextmanager
        async def resource(
            name: str, began: list[str] = began, opened: list[str] = opened, closed: list[str] = closed
        ) -> AsyncIterator[None]:
            began.append(name)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            opened.append(name)
            try:
                yield
            finally:
                await asyncio.sleep(0)
                closed.append(name)

        async def start(s: Service, resource: Callable[[str], Any] = resource, began: list[str] = began) -> None:
            for name in "abc":
                await s.open(resource(name), name=name)
            s.loop(waits)

        async def waits(stop: Stop, began: list[str] = began) -> None:
            began.append("worker")
            await stop.wait()

        runner = Runner(ServiceDefinition("sweep", start), hard_deadline=False)
        runner.begin()
        for _ in range(turn):
            await asyncio.sleep(0)
        over = runner.running.done()
        # What the machine has let begin before the stop may have its first line behind it.
        allowed = {*runner.machine.resources, *(["worker"] if over else [])}
        runner.signalled.step(1, signal.SIGTERM)
        async with asyncio.timeout(5):
            report = await runner.stopped
        assert closed == opened[::-1], f"turn {turn}"
        assert set(began) <= allowed, f"turn {turn}: something began behind the stop"
        assert report.exit_code == 0
        if over:
            break
    assert turn > 15
    assert opened == ["a", "b", "c"]


def test_handlers_are_there_before_anything_heavy_is_imported() -> None:
    """Measured in modules and not in seconds, which say more of the machine than of us."""
    code = (
        "import sys, signal, quiesce.supervisor.signals as s\n"
        "def stop(self):\n"
        "    print(*sys.modules)\n"
        "    sys.exit(0)\n"
        "s.SignalLadder.install = stop\n"
        "from quiesce.cli.main import main\n"
        "main(['run', 'nothing:here'])\n"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    modules = set(loaded.stdout.split())
    assert "quiesce.supervisor.signals" in modules
    for heavy in ("asyncio", "ssl", "dataclasses", "quiesce.lifecycle.machine", "quiesce.relay", "importlib.metadata"):
        assert heavy not in modules, f"{heavy} is loaded before the signals are taken"


@pytest.mark.parametrize("name", ["uvicorn_inside", "loop_handler"])
def test_a_replaced_handler_is_noticed_within_a_second_said_and_taken_back(start: Start, name: str) -> None:
    process = start(name)
    process.wait_for("readiness: ready")
    began = time.monotonic()
    process.wait_for(r"WARNING quiesce.supervisor the handler of SIGTERM was replaced by .*; it is ours again")
    # A busy machine gets some grace; the guard itself looks twice a second.
    assert time.monotonic() - began < 1.5
    process.signal()
    assert process.wait(8) == 0, process.text()
    text = process.text()
    assert "received signal SIGTERM" in text
    assert "closed pool" in text
    assert report_of(process)["exit_code"] == 0
    assert "the loop's handler was called" not in text
    replaced = "uvicorn" if name == "uvicorn_inside" else "asyncio"
    assert re.search(rf"replaced by {replaced}[\w.]*", text)


@pytest.mark.needs("namespaces")
def test_works_as_pid_1() -> None:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    run = [sys.executable, "-P", "-m", "quiesce", "run", "signal_services:quiet"]
    with ServiceProcess([*command, *run], environment={"PYTHONPATH": str(HERE)}, name="pid 1") as process:
        process.wait_for("started")
        (inside,) = children_of(process.pid)
        with open(f"/proc/{inside}/status") as status:
            numbers = next(line.split()[1:] for line in status if line.startswith("NSpid:"))
        assert numbers[-1] == "1", "it is PID 1 of its namespace"
        os.kill(inside, signal.SIGTERM)
        assert process.wait(8) == 0, process.text()
        assert "closed pool" in process.text()
        assert report_of(process)["reason"] == "received SIGTERM"


def test_nothing_is_raised_from_a_handler_and_only_steps_beyond_the_debounce_count() -> None:
    now = 100.0
    ladder = SignalLadder(clock=lambda: now)
    ladder.install()
    try:
        for pause in (0.0, 0.3, 0.6):
            now += pause
            signal.raise_signal(signal.SIGINT)
        assert ladder.received() == [signal.SIGINT]
        now += 0.2
        signal.raise_signal(signal.SIGTERM)
        # 1.1 s after the one that counted, though only 0.2 s after the last one.
        assert ladder.received() == [signal.SIGINT, signal.SIGTERM]
    finally:
        ladder.restore()


def test_restore_gives_every_signal_back() -> None:
    taken = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in taken]
    ladder = SignalLadder()
    ladder.install()
    assert all(signal.getsignal(number) not in before for number in taken)
    ladder.restore()
    assert [signal.getsignal(number) for number in taken] == before
