"""The measurements behind `quiesce bench lifecycle`. Each compares in one run, one after the other in turns."""

import asyncio
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quiesce.bench import subjects
from quiesce.bench.figures import Figure, above
from quiesce.bench.processes import Measured
from quiesce.errors import StartError
from quiesce.supervisor.critical import critical
from quiesce.supervisor.decorator import service
from quiesce.supervisor.entry import running
from quiesce.supervisor.service import Service

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    seconds: float = 5.0
    """For which an idle service is watched."""
    rounds: int = 60
    """Turns of calls, bare and critical."""
    calls: int = 500
    """In each turn."""
    exits: int = 9
    """Processes of each kind."""
    drains: int = 3


QUICK = Effort(seconds=0.5, rounds=20, calls=50, exits=1, drains=1)


def measure(effort: Effort, say: Say) -> Iterator[Figure]:
    """All figures, one by one. `say` is told what is measured next."""
    say(f"an idle service, watched for {effort.seconds:g} s")
    yield idle_share("waiting", "idle_cpu_percent", "CPU of an idle service, 50 workers that wait", effort, 0.5)
    say(f"50 workers that wake each second, watched for {effort.seconds:g} s")
    yield idle_share("ticking", "ticking_cpu_percent", "the same, each waking once a second", effort, None)
    say("the cost of critical()")
    yield asyncio.run(critical_cost(effort))
    say(f"the drain of {subjects.MANY} workers, {effort.drains} processes")
    yield many_drain(effort)
    say(f"SIGTERM to exit without HTTP, {effort.exits} pairs of processes")
    yield exit_time("idle", "exit_ms", "SIGTERM to exit, idle workers, above interpreter teardown", effort, 150.0)
    say(f"SIGTERM to exit with idle HTTP, {effort.exits} pairs of processes")
    yield exit_time("idle_http", "exit_http_ms", "the same with idle HTTP", effort, 300.0)


def idle_share(subject: str, key: str, says: str, effort: Effort, target: float | None) -> Figure:
    with Measured.subject(subject, **{subjects.SECONDS: str(effort.seconds)}) as process:
        began = process.heard("watched")
        seen = process.heard("seen")
        _require_clean(process.over().status, subject)
    return Figure(key, says, 100.0 * (seen["cpu"] - began["cpu"]) / seen["elapsed"], "%", target)


async def critical_cost(effort: Effort) -> Figure:
    """Microseconds by which `await critical("x", fn)` exceeds `await fn()`."""
    # Its report is no part of the measurement.
    logging.getLogger("quiesce").setLevel(logging.ERROR)

    @service("bench-critical")
    async def host(s: Service) -> None:
        pass

    bare: list[float] = []
    guarded: list[float] = []
    async with running(host):
        for _ in range(effort.rounds):
            began = time.perf_counter()
            for _ in range(effort.calls):
                await subjects.nothing()
            between = time.perf_counter()
            for _ in range(effort.calls):
                await critical("measured", subjects.nothing)
            ended = time.perf_counter()
            bare.append(1e6 * (between - began) / effort.calls)
            guarded.append(1e6 * (ended - between) / effort.calls)
    return above("critical_us", "critical() above a bare await of the same coroutine", guarded, bare, "us", 25.0)


def many_drain(effort: Effort) -> Figure:
    """CPU seconds from the request to stop to the very end of the process."""
    used: list[float] = []
    for _ in range(effort.drains):
        with Measured.subject("many") as process:
            before = process.heard("up")["cpu"]
            end = process.end()
            _require_clean(end.status, "many")
            used.append(end.cpu - before)
    says = f"CPU to drain {subjects.MANY} periodic workers, up to the process's end"
    return Figure("drain_cpu_seconds", says, statistics.median(used), "s", 1.0, tuple(used))


def exit_time(subject: str, key: str, says: str, effort: Effort, target: float) -> Figure:
    """Milliseconds from SIGTERM to exit, above those of a bare interpreter with the same modules."""
    with Measured.subject(subject) as first:
        # Not counted: it fills the caches, and tells which modules a bare interpreter has to load.
        modules = first.heard("up")["modules"]
        _require_clean(first.end().status, subject)
    measured: list[float] = []
    bare: list[float] = []
    for _ in range(effort.exits):
        for process, samples in ((Measured.bare(modules), bare), (Measured.subject(subject), measured)):
            with process:
                process.heard("up")
                end = process.end()
                _require_clean(end.status, subject)
                samples.append(1000.0 * end.seconds)
    return above(key, says, measured, bare, "ms", target)


def _require_clean(status: int, subject: str) -> None:
    if status != 0:
        raise StartError(f"the measured service {subject} ended with status {status}, so there is nothing to measure")
