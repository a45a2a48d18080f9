"""One replica: how to run it, where it is, and what its own report says of its end."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quiesce.drill.verdict import Shutdown
from quiesce.testing.service_process import ServiceProcess


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to run one replica.

    `target` is what `quiesce run` takes, or a whole command; HOST and PORT are added to `environment`.
    """

    name: str
    target: str | tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Replica:
    """`state` is one of starting, serving, preStop, stopping, and at its end stopped, killed or died."""

    name: str
    number: int
    port: int
    process: ServiceProcess
    state: str = "starting"
    ending: "asyncio.Task[None] | None" = None

    @property
    def over(self) -> bool:
        return self.state in ("stopped", "killed", "died")


def slowest_worker(report: Mapping[str, Any] | None) -> str:
    """Which worker took longest, for a line about the shutdown; empty where none took a second."""
    times = {worker["worker"]: worker["duration_seconds"] or 0.0 for worker in (report or {}).get("workers", ())}
    name = max(times, key=lambda worker: times[worker], default="")
    return f"; its slowest worker, {name}, took {times[name]:.1f} s" if name and times[name] >= 1 else ""


def shutdown_of(
    replica: str, reason: str, seconds: float, status: int, report: Mapping[str, Any] | None, log: Path | None = None
) -> Shutdown:
    """What became of a replica, from its status and, where it wrote one, its own report."""
    if report is None:
        return Shutdown(replica, reason, seconds, status, None, log=log)
    parts = {name: float(part["duration_seconds"]) for name, part in report["parts"].items()}
    why = "; ".join(_complaints(report))
    return Shutdown(replica, reason, seconds, status, float(report["available_seconds"]), parts, why, log)


def _complaints(report: Mapping[str, Any]) -> Iterator[str]:
    """What a report tells that went wrong."""
    yield from report["errors"]
    for left in report["abandoned"]:
        yield f"{left['count']} {left['what']} ({left['worker']})"
    for name, part in report["parts"].items():
        if part["overran"]:
            yield f"{name} took {part['duration_seconds']:.1f} s of {part['bound_seconds']:g} s"
