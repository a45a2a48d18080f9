"""Starts the services of `signal_services.py` as processes, and reads what they said."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from quiesce.testing.service_process import ServiceProcess

HERE = Path(__file__).parent

Start = Callable[..., ServiceProcess]


def processes() -> Iterator[Start]:
    """Makes the fixture `start`; what still runs at the end is killed."""
    started: list[ServiceProcess] = []

    def begin(name: str, **environment: str) -> ServiceProcess:
        process = ServiceProcess(
            f"signal_services:{name}", environment={"PYTHONPATH": str(HERE), **environment}, name=name
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


def events(process: ServiceProcess) -> list[dict[str, Any]]:
    """The lines of a log in JSON; other lines are left out."""
    return [json.loads(line) for line in process.text().splitlines() if line.startswith("{")]


def said(process: ServiceProcess, pattern: str) -> list[str]:
    """What the service itself wrote, in order."""
    return re.findall(rf"^\[[\d.]+\] ({pattern})$", process.text(), re.MULTILINE)
