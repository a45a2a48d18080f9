"""The throughput of `quiesce bench relay`: our relay and a bare loop in turns, on the same backlog."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from quiesce.bench.cores import Shares
from quiesce.bench.figures import Figure
from quiesce.bench.processes import Measured
from quiesce.bench.relay_job import Job
from quiesce.bench.relay_scene import BARE, SUBJECT, Scene
from quiesce.bench.relay_tables import Tables
from quiesce.bench.results import Result
from quiesce.errors import StartError

MOVE_BOUND = 300.0
"""Seconds for one backlog. Far above what is measured."""

TARGETS = {"log": 0.75, "row": 1.0}
"""Of the bare loop's events a second, at least."""


@dataclass(frozen=True, slots=True)
class Move:
    """One backlog moved once: events a second, microseconds of CPU an event in the process that moved it, and who
    used the cores meanwhile."""

    per_second: float
    cpu_us: float
    cores: Shares


@dataclass(frozen=True, slots=True)
class Throughput:
    """Every run of both, in the order they were made in."""

    store: str
    page: int
    ours: tuple[Move, ...]
    bare: tuple[Move, ...]
    events: int = 0

    @property
    def events_per_second(self) -> float:
        return statistics.median(move.per_second for move in self.ours)

    @property
    def bare_events_per_second(self) -> float:
        return statistics.median(move.per_second for move in self.bare)

    @property
    def ratio(self) -> float:
        return self.events_per_second / self.bare_events_per_second

    def result(self) -> Result:
        rates, bare = tuple(move.per_second for move in self.ours), tuple(move.per_second for move in self.bare)
        cpu, bare_cpu = _median_cpu(self.ours), _median_cpu(self.bare)
        figures = (
            Figure("events_per_second", "events moved in a second", self.events_per_second, "/s", None, rates, bare),
            Figure("ratio", "beside the bare loop", self.ratio, "", TARGETS[self.store], at_least=True),
            Figure("cpu_us", "CPU of the relay's process, an event", cpu, "us"),
        )
        facts: dict[str, Any] = {
            "page": self.page,
            "events": self.events,
            "events_per_second": round(self.events_per_second),
            "bare_events_per_second": round(self.bare_events_per_second),
            "ratio": round(self.ratio, 3),
            "cpu_us_per_event": round(cpu, 2),
            "bare_cpu_us_per_event": round(bare_cpu, 2),
            "runs": [round(one) for one in rates],
            "bare_runs": [round(one) for one in bare],
            "cores": _median_cores(self.ours),
            "bare_cores": _median_cores(self.bare),
        }
        says = (
            f"{self.store} store, pages of {self.page:,}: {self.events_per_second:,.0f} events/s, the bare loop "
            f"{self.bare_events_per_second:,.0f} at {bare_cpu:.1f} us"
        )
        cores = replace(together(self.ours + self.bare), parts=_median_cores(self.ours))
        return Result(("stores", self.store), says, figures, facts, cores)


def measure_throughput(scene: Scene, store: str, page: int, events: int, rounds: int) -> Throughput:
    """Both move the first `events` of a backlog, each time of a fresh copy, and take turns in who goes first.

    After the first round none is begun that would not fit into the time planned for it.
    """
    plan = scene.plan
    tables = scene.backlog(plan.events if store == "log" else min(plan.events, plan.effort.row_events), store)
    job = scene.job(store, events=events, page=page)
    if plan.effort.warm_up:
        move_backlog(scene, BARE, replace(job, events=min(events, plan.effort.warm_up)), tables)
    moves: dict[str, list[Move]] = {BARE: [], SUBJECT: []}
    longest = 0.0
    for number in range(rounds):
        at = time.monotonic()
        if number and not scene.time_for(store, longest):
            scene.say(f"{store} store: {number} of {rounds} rounds, no time for more")
            break
        for module in (BARE, SUBJECT) if number % 2 == 0 else (SUBJECT, BARE):
            moves[module].append(move_backlog(scene, module, job, tables))
            who = "the bare loop" if module == BARE else "the relay"
            said = f"round {number + 1} of {rounds}: {who}, {moves[module][-1].per_second:,.0f}/s"
            scene.say(f"{store} store, pages of {page:,}, {said}")
        longest = max(longest, time.monotonic() - at)
    return Throughput(store, page, tuple(moves[SUBJECT]), tuple(moves[BARE]), events)


def move_backlog(scene: Scene, module: str, job: Job, tables: Tables) -> Move:
    """One copy, moved once. From the first page that is settled to the last; with a single page, from the start."""
    with tables.copy() as dsn, Measured.module(module, job.on(dsn).dumps()) as process:
        begin = process.heard("up")
        cores = scene.servers.cores(**{"relay" if module == SUBJECT else "bare_loop": process.pid})
        first = process.heard("first", MOVE_BOUND)
        moved = process.heard("moved", MOVE_BOUND)
        used = cores.used()
        end = process.end() if module == SUBJECT else process.over()
        if end.status != 0:
            raise StartError(f"the measured process {module} ended with status {end.status}")
    before = 0
    if moved["events"] > first["events"]:
        begin, before = first, first["events"]
    events = moved["events"] - before
    return Move(events / (moved["at"] - begin["at"]), 1e6 * (moved["cpu"] - begin["cpu"]) / events, used)


def together(moves: Sequence[Move]) -> Shares:
    """What all of them used of the cores, by their lengths."""
    seconds = sum(move.cores.seconds for move in moves)

    def mean(of: Sequence[tuple[float, float | None]]) -> float | None:
        if any(share is None for _, share in of):
            return None
        return sum(length * (share or 0.0) for length, share in of) / seconds

    return Shares(
        seconds,
        {},
        mean([(move.cores.seconds, move.cores.ours) for move in moves]) or 0.0,
        mean([(move.cores.seconds, move.cores.others) for move in moves]),
        mean([(move.cores.seconds, move.cores.stolen) for move in moves]),
    )


def _median_cpu(moves: Sequence[Move]) -> float:
    return statistics.median(move.cpu_us for move in moves)


def _median_cores(moves: Sequence[Move]) -> dict[str, float]:
    names = moves[0].cores.parts
    return {name: round(statistics.median(move.cores.parts[name] for move in moves), 3) for name in names}
