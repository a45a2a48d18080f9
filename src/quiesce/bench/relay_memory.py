"""How much memory the relay takes before a backlog that is far larger."""

import statistics
import time
from collections.abc import Sequence

from quiesce.bench.cores import memory
from quiesce.bench.figures import Figure
from quiesce.bench.processes import Measured
from quiesce.bench.relay_gauge import Gauge
from quiesce.bench.relay_scene import SUBJECT, Scene
from quiesce.bench.results import Result
from quiesce.errors import StartError

MOST = 150.0
"""Megabytes."""
FLAT = 1.1
"""The last quarter of the events beside the second one: in the first it still grows to its size."""

_SAMPLE = 0.05
_TELL = 10.0
_STALL_BOUND = 60.0

Samples = Sequence[tuple[int, float]]
"""Events moved until then, and megabytes."""


def growth(samples: Samples, events: int) -> float:
    """The memory of the last quarter of the events, by that of the second quarter: medians.

    With too few samples for that, the last one by the first one.
    """

    def quarter(number: int) -> list[float]:
        return [size for moved, size in samples if events * number / 4 <= moved < events * (number + 1) / 4]

    second, last = quarter(1), quarter(3)
    if not second or not last:
        return samples[-1][1] / samples[0][1]
    return statistics.median(last) / statistics.median(second)


def measure_memory(scene: Scene, store: str) -> Result:
    """One relay moves the whole backlog, and its resident memory is looked at meanwhile.

    Raises:
        StartError: nothing moved for a minute.
    """
    plan = scene.plan
    events = plan.effort.memory_events
    scene.forget()
    dsn = scene.backlog(events, store, bare=False).filled
    samples: list[tuple[int, float]] = []
    with Gauge.fresh() as gauge:
        job = scene.job(store, dsn, gauge=str(gauge.path), bulk=True)
        with Measured.module(SUBJECT, job.dumps()) as relay:
            relay.heard("up")
            cores = scene.servers.cores(relay=relay.pid)
            told = moved_at = began = time.monotonic()
            while gauge.moved < events:
                time.sleep(_SAMPLE)
                now = time.monotonic()
                if samples and gauge.moved > samples[-1][0]:
                    moved_at = now
                samples.append((gauge.moved, memory(relay.pid)))
                if now > moved_at + _STALL_BOUND:
                    raise StartError(f"the relay stood still after {gauge.moved:,} of {events:,} events")
                if now > told + _TELL:
                    told = now
                    scene.say(f"{gauge.moved:,} of {events:,} events, {samples[-1][1]:.0f} MB")
            used = cores.used()
            seconds = gauge.last_at - began
            relay.end()
    scene.forget()
    peak = max(size for _, size in samples)
    grown = growth(samples, events)
    every = max(1, len(samples) // 40)
    figures = (
        Figure("peak_mb", "resident memory of the relay's process, at most", peak, "MB", MOST),
        Figure("growth", "its last quarter beside the second one", grown, "", FLAT, or_equal=True),
    )
    facts = {
        "store": store,
        "backlog": events,
        "events_per_second": round(events / seconds),
        "samples": [{"moved": moved, "mb": round(size, 1)} for moved, size in samples[::every]],
    }
    says = f"a backlog of {events:,} events, moved at {events / seconds:,.0f}/s"
    return Result(("memory",), says, figures, facts, used)
