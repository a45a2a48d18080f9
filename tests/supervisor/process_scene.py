"""Starts services of this room as processes, and reads what they said."""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quiesce.testing.service_process import ServiceProcess

HERE = Path(__file__).parent

Start = Callable[..., ServiceProcess]


def processes(module: str) -> Iterator[Start]:
    """Makes the fixture `start`, for the services of a module; what still runs at the end is killed."""
    started: list[ServiceProcess] = []

    def begin(name: str, **environment: str) -> ServiceProcess:
        process = ServiceProcess(
            f"{module}:{name}", environment={"PYTHONPATH": str(HERE), **environment}, name=name
        ).start()
        started.append(process)
        return process

    yield begin
    for process in started:
        process.discard()


def report_of(process: ServiceProcess) -> dict[str, Any]:
    report = process.report()
    assert report is not None, process.text()
    return report


def press_until(process: ServiceProcess, done: Callable[[], bool], within: float = 4.0) -> None:
    """Sends SIGINT again and again, as a person does; those inside the debounce count for nothing."""
    until = time.monotonic() + within
    while not done():
        assert time.monotonic() < until, process.text()
        process.signal(signal.SIGINT)
        time.sleep(0.05)


def in_order(text: str, *marks: str) -> None:
    """Each mark stands in the text, the one behind the other."""
    places = [text.find(mark) for mark in marks]
    assert -1 not in places, f"missing: {[m for m, p in zip(marks, places, strict=True) if p < 0]} in\n{text}"
    assert places == sorted(places), text


def events(process: ServiceProcess) -> list[dict[str, Any]]:
    """The lines of a log in JSON; other lines are left out."""
    return [json.loads(line) for line in process.text().splitlines() if line.startswith("{")]


def said(process: ServiceProcess, pattern: str) -> list[str]:
    """What the service itself wrote, in order."""
    return re.findall(rf"^\[[\d.]+\] ({pattern})$", process.text(), re.MULTILINE)
