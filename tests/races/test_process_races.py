"""Five hundred real processes, each told to stop at another instant of its life: `make races`.

QUIESCE_RACES takes another number. Seeds are fixed, so a schedule that failed can be played again by its number;
what the machine does meanwhile differs.
"""

import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from quiesce.testing.service_process import ServiceProcess

SERVICES = Path(__file__).parents[1] / "supervisor"
RACES = int(os.environ.get("QUIESCE_RACES", "500"))
GROUPS = 10
WILD_ONES = 6
"""One race of so many has workers that overrun and hang."""
LONGEST_LIFE = 1.2
"""Seconds after which the latest signal is sent: from before the interpreter is up to well into its work."""


@pytest.mark.races
@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", range(GROUPS))
def test_processes_stopped_at_any_instant_keep_the_order_and_end(group: int) -> None:
    for number in range(group, RACES, GROUPS):
        race(number)


def race(number: int) -> None:
    draw = random.Random(number)
    first = draw.random() * LONGEST_LIFE
    again = draw.random() < 0.3
    wild = number % WILD_ONES == 0
    environment = {"PYTHONPATH": str(SERVICES), "RACE": str(number)}
    name = "wild" if wild else "race"
    process = ServiceProcess(f"worker_services:{name}", environment=environment, name=f"{name} {number}")
    with process:
        time.sleep(first)  # the draw of the race, and no wait for anything
        process.signal(draw.choice((signal.SIGTERM, signal.SIGINT)))
        if again or wild:
            # Inside the debounce: it must count for nothing.
            time.sleep(0.3 * draw.random())
            process.signal(signal.SIGTERM)
        if wild and again:
            # Outside of it: an abort, wherever the shutdown is by then.
            time.sleep(1.0 + draw.random())
            process.signal(signal.SIGTERM)
        status = process.wait(15)
        text = process.text()
        report = process.report()
    told = f"{name} {number}, stopped after {first:.3f} s, status {status}:\n{text}"
    if status in (128 + signal.SIGTERM, 128 + signal.SIGINT) or "KeyboardInterrupt" in text:
        # The interpreter was not up yet, and nobody can take a signal before that.
        assert "opened" not in text, told
        return
    check_order(told, text)
    if wild:
        check_wild(told, status, text, report)
    else:
        assert status == 0, told


def check_order(told: str, text: str) -> None:
    lines = re.findall(r"^\[[\d.]+\] (.+)$", text, re.MULTILINE)
    # All that began has ended, nothing began after the intake closed, and pools are closed last.
    for name in ("work", "thread", "beat", "late", "hangs", "section", "long section"):
        assert lines.count(f"{name} began") == lines.count(f"{name} ended"), told
    closing = [line for line in lines if line.startswith(("opened", "closed"))]
    opened = [line.removeprefix("opened ") for line in closing if line.startswith("opened")]
    closed = [line.removeprefix("closed ") for line in closing if line.startswith("closed")]
    assert sorted(closed) == sorted(opened), told
    assert closed == sorted(closed, key=["producer", "pool"].index), told
    if closed:
        after = lines[lines.index(f"closed {closed[0]}") :]
        assert not [line for line in after if line.endswith(("began", "ended", "torn"))], told
    if "readiness: not ready (received" in text:
        behind = text[text.index("readiness: not ready (received") :]
        assert "] work began" not in behind, told


def check_wild(told: str, status: int, text: str, report: dict[str, Any] | None) -> None:
    """What was torn, or left, is named and counted; what was neither ended by itself, and the status is 0."""
    assert report is not None, told
    assert report["exit_code"] == status, told
    torn = set(re.findall(r"\] ([\w ]+) was torn$", text, re.MULTILINE))
    hung = set(re.findall(r"\] (\w+) hangs$", text, re.MULTILINE))
    assert status == (75 if torn or hung else 0), told
    outcomes = {worker["worker"]: worker["outcome"] for worker in report["workers"]}
    for name in torn:
        assert outcomes[name] == "aborted", told
    if "eats" in hung:
        assert outcomes["eats"] == "abandoned", told
    abandoned = {left["worker"] for left in report["abandoned"]}
    assert abandoned >= torn | hung, told
    assert {hang["name"] for hang in report["hung"]} >= ({"eats"} & hung), told
    assert ("start" in hung) == ("function" in {hang["name"] for hang in report["hung"]}), told
