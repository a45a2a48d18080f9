"""The measurements behind `quiesce bench relay`: our relay and bare loops in turns, on the same backlog."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quiesce.bench.processes import Measured
from quiesce.bench.relay_job import Job
from quiesce.bench.relay_tables import Tables
from quiesce.errors import StartError

Say = Callable[[str], None]

MOVE_BOUND = 300.0
"""Seconds for one backlog. Far above what is measured."""

TARGETS = {"log": 0.75, "row": 1.0}
"""Of the bare loop's events a second, at least."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Events a second, each run by itself, and microseconds of CPU that the relay's process used for an event."""

    store: str
    page: int
    runs: tuple[float, ...]
    bare_runs: tuple[float, ...]
    cpu_us: float
    bare_cpu_us: float

    @property
    def events_per_second(self) -> float:
        return statistics.median(self.runs)

    @property
    def bare_events_per_second(self) -> float:
        return statistics.median(self.bare_runs)

    @property
    def ratio(self) -> float:
        return self.events_per_second / self.bare_events_per_second

    @property
    def passed(self) -> bool:
        return self.ratio >= TARGETS[self.store]

    def line(self) -> str:
        verdict = "pass" if self.passed else "MISSED"
        return (
            f"{self.store} store, pages of {self.page:>5}  {self.events_per_second:>9,.0f} events/s  "
            f"bare loop {self.bare_events_per_second:>9,.0f}  ratio {self.ratio:.2f} of at least "
            f"{TARGETS[self.store]:g}  CPU {self.cpu_us:.1f} us (bare {self.bare_cpu_us:.1f})  {verdict}"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "page": self.page,
            "events_per_second": round(self.events_per_second),
            "bare_events_per_second": round(self.bare_events_per_second),
            "ratio": round(self.ratio, 3),
            "cpu_us_per_event": round(self.cpu_us, 2),
            "bare_cpu_us_per_event": round(self.bare_cpu_us, 2),
            "runs": [round(one) for one in self.runs],
            "bare_runs": [round(one) for one in self.bare_runs],
            "target": TARGETS[self.store],
            "passed": self.passed,
        }


def measure_throughput(tables: Tables, job: Job, rounds: int, say: Say) -> Throughput:
    """Both move the whole backlog, each time a fresh copy of it: bare, ours, bare, ours ..."""
    samples: dict[str, list[tuple[float, float]]] = {"relay_bare": [], "relay_subject": []}
    for number in range(rounds):
        for module, taken in samples.items():
            what = "the bare loop" if module == "relay_bare" else "the relay"
            with tables.copy() as dsn:
                taken.append(_move(module, job.on(dsn)))
            say(
                f"{job.store} store, pages of {job.page}, round {number + 1} of {rounds}: {what}, {taken[-1][0]:,.0f}/s"
            )
    ours, bare = samples["relay_subject"], samples["relay_bare"]
    return Throughput(job.store, job.page, _firsts(ours), _firsts(bare), _median_cpu(ours), _median_cpu(bare))


def _move(module: str, job: Job) -> tuple[float, float]:
    """Events a second and microseconds of CPU an event."""
    with Measured.module(f"quiesce.bench.{module}", job.dumps()) as process:
        up = process.heard("up")
        moved = process.heard("moved", MOVE_BOUND)
        end = process.end() if module == "relay_subject" else process.over()
    if end.status != 0:
        raise StartError(f"the measured process {module} ended with status {end.status}")
    return moved["events"] / moved["seconds"], 1e6 * (moved["cpu"] - up["cpu"]) / moved["events"]


def _firsts(samples: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    return tuple(rate for rate, _ in samples)


def _median_cpu(samples: Sequence[tuple[float, float]]) -> float:
    return statistics.median(cpu for _, cpu in samples)
