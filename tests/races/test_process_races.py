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

import pytest

from quiesce.testing.service_process import ServiceProcess

SERVICES = Path(__file__).parents[1] / "supervisor"
RACES = int(os.environ.get("QUIESCE_RACES", "500"))
GROUPS = 10
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
    environment = {"PYTHONPATH": str(SERVICES), "RACE": str(number)}
    process = ServiceProcess("worker_services:race", environment=environment, name=f"race {number}")
    with process:
        time.sleep(first)  # the draw of the race, and no wait for anything
        process.signal(draw.choice((signal.SIGTERM, signal.SIGINT)))
        if again:
            # Inside the debounce: it must count for nothing.
            time.sleep(0.3 * draw.random())
            if process.alive:
                process.signal(signal.SIGTERM)
        status = process.wait(15)
        text = process.text()
    check(number, status, text, first)


def check(number: int, status: int, text: str, first: float) -> None:
    told = f"race {number}, stopped after {first:.3f} s, status {status}:\n{text}"
    if status in (128 + signal.SIGTERM, 128 + signal.SIGINT) or "KeyboardInterrupt" in text:
        # The interpreter was not up yet, and nobody can take a signal before that.
        assert "opened" not in text, told
        return
    assert status == 0, told
    lines = re.findall(r"^\[[\d.]+\] (.+)$", text, re.MULTILINE)
    # All that began has ended, nothing began after the intake closed, and pools are closed last.
    for name in ("work", "thread", "beat"):
        assert lines.count(f"{name} began") == lines.count(f"{name} ended"), told
    closing = [line for line in lines if line.startswith(("opened", "closed"))]
    opened = [line.removeprefix("opened ") for line in closing if line.startswith("opened")]
    closed = [line.removeprefix("closed ") for line in closing if line.startswith("closed")]
    assert sorted(closed) == sorted(opened), told
    assert closed == sorted(closed, key=["producer", "pool"].index), told
    if closed:
        after = lines[lines.index(f"closed {closed[0]}") :]
        assert not [line for line in after if line.endswith(("began", "ended"))], told
    if "readiness: not ready (received" in text:
        behind = text[text.index("readiness: not ready (received") :]
        assert "] work began" not in behind, told
