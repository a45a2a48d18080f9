"""What waking the relay by notifications costs the writer: its commits with and without, in turns."""

import asyncio
import statistics
import time

from quiesce.bench.figures import Figure
from quiesce.bench.processes import Measured
from quiesce.bench.relay_arrivals import Arrivals
from quiesce.bench.relay_job import Job
from quiesce.bench.relay_load import Load
from quiesce.bench.relay_scene import PARTITIONS, SUBJECT, Scene
from quiesce.bench.results import Result
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import OutboxWaker

MOST = 1.1
"""The median of the segments' 99th percentiles with wake-ups, beside that without."""
REACHED = 0.97
"""Of the transactions a second that are asked for. With fewer the comparison is one of another load."""

_CLOSE_BOUND = 5.0


def measure_wakeup(scene: Scene, store: str) -> Result:
    """One relay that listens all the time. The writer says something behind each commit, or does not: a segment of
    load each, in turns. Medians of the segments' 99th percentiles are compared.

    Raises:
        StartError: events did not arrive.
    """
    effort = scene.plan.effort
    job = scene.job(store, scene.empty(), listens=True)
    p99: dict[bool, list[float]] = {False: [], True: []}
    p50: dict[bool, list[float]] = {False: [], True: []}
    rates: list[float] = []
    with Measured.module(SUBJECT, job.dumps()) as relay:
        relay.heard("up")
        cores = scene.servers.cores(relay=relay.pid)
        _segment(job, effort.segment_rate, min(1.0, effort.segment_seconds), wakes=True)
        for number in range(effort.segments):
            # Off and on, on and off: a machine that gets slower meanwhile favours neither.
            for wakes in (False, True) if number % 2 == 0 else (True, False):
                load = _segment(job, effort.segment_rate, effort.segment_seconds, wakes=wakes)
                cuts = statistics.quantiles((1000 * one for one in load.took), n=100)
                p50[wakes].append(cuts[49])
                p99[wakes].append(cuts[98])
                rates.append(load.per_second)
                said = f"segment {number + 1} of {effort.segments} {'with' if wakes else 'without'} wake-ups"
                scene.say(f"{said}: commits take {cuts[49]:.2f} ms, 99 of 100 {cuts[98]:.2f} ms")
        used = cores.used()
        relay.end()
    on, off = (statistics.median(p99[wakes]) for wakes in (True, False))
    rate, asked = statistics.median(rates), effort.segment_rate
    samples = (tuple(p99[True]), tuple(p99[False]))
    figures = (
        Figure("rate", "transactions a second", rate, "/s", asked * REACHED, tuple(rates), at_least=True),
        Figure("ratio", "commits' 99th percentile beside the one without", on / off, "", MOST, *samples, or_equal=True),
    )
    facts = {
        "store": store,
        "rate": round(rate, 1),
        "on_p99_ms": round(on, 3),
        "off_p99_ms": round(off, 3),
        "on_p50_ms": round(statistics.median(p50[True]), 3),
        "off_p50_ms": round(statistics.median(p50[False]), 3),
        "segments": effort.segments,
        "segment_seconds": effort.segment_seconds,
    }
    says = (
        f"waking the relay at {rate:,.0f} transactions a second: commits' 99th percentile "
        f"{on:.2f} ms with, {off:.2f} ms without"
    )
    return Result(("wakeup",), says, figures, facts, used)


def _segment(job: Job, rate: float, seconds: float, *, wakes: bool) -> Load:
    load = Load(job, rate, seconds)
    with Arrivals(job.broker, job.topic, PARTITIONS, load.timings) as arrivals:
        asyncio.run(_written(load, job, wakes))
        # The next segment begins with nothing left to do.
        arrivals.wait()
    return load


async def _written(load: Load, job: Job, wakes: bool) -> None:
    waker = OutboxWaker(job.dsn)
    # Open in both kinds of segments, so that the one thing that differs is what is said.
    await waker.open()
    try:
        load.wake = waker.nudge if wakes else None
        await load.run()
    finally:
        await waker.close(Deadline(time.monotonic() + _CLOSE_BOUND))
