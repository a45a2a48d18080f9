"""What a consumer notices when a relay goes: how long the latest events are under way, and which come twice."""

import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from quiesce.bench.cores import Shares
from quiesce.bench.figures import Figure
from quiesce.bench.processes import Measured
from quiesce.bench.relay_arrivals import Arrivals
from quiesce.bench.relay_gauge import Gauge
from quiesce.bench.relay_lanes import wait_until_shared
from quiesce.bench.relay_load import Load
from quiesce.bench.relay_scene import PARTITIONS, SUBJECT, Scene
from quiesce.bench.results import Result

RATE = 500.0
"""Transactions a second meanwhile, of one event each."""
KILL_TARGET, TERM_TARGET, COLD_TARGET = 1.0, 0.3, 1.0
"""Seconds."""

_BEFORE = 1.0
"""Seconds of load before the signal."""
_WAITING = 100
"""Events that wait for a cold start."""


@dataclass(frozen=True, slots=True)
class Handover:
    """A relay that went under load, with another beside it.

    Args:
        seconds: the longest way from commit to consumer of what came behind the signal.
        events: how many there were in all.
        doubled: those that came twice.
        in_flight: what the relay had claimed and not settled when it was gone.
        limit: most events that it may have in flight.
    """

    seconds: float
    events: int
    doubled: int
    in_flight: int
    limit: int


def measure_handovers(scene: Scene, store: str) -> Result:
    """Killed, told to stop, and started cold, in turns."""
    effort = scene.plan.effort
    killed, stopped, cold = [], [], []
    cores = scene.servers.cores()
    for number in range(effort.handovers):
        turn = f"turn {number + 1} of {effort.handovers}"
        killed.append(measure_handover(scene, store, signal.SIGKILL))
        scene.say(f"{turn}: SIGKILL, {killed[-1].seconds:.2f} s, {killed[-1].doubled} events twice")
        stopped.append(measure_handover(scene, store, signal.SIGTERM))
        scene.say(f"{turn}: SIGTERM, {stopped[-1].seconds:.2f} s, {stopped[-1].doubled} events twice")
        cold.append(measure_cold_start(scene, store))
        scene.say(f"{turn}: cold start, {cold[-1]:.2f} s to the first event")
    return handover_result(store, killed, stopped, cold, cores.used())


def handover_result(
    store: str, killed: Sequence[Handover], stopped: Sequence[Handover], cold: Sequence[float], cores: Shares
) -> Result:
    """Medians of the seconds; of what came twice the worst turn, since a promise holds for each."""
    worst = max(killed, key=lambda one: one.doubled - one.in_flight)
    doubled = sum(one.doubled for one in stopped)
    figures = (
        _seconds("kill_seconds", "SIGKILL, longest way of an event", [one.seconds for one in killed], KILL_TARGET),
        Figure(
            "kill_doubled",
            "SIGKILL, events that came twice, beside those in flight",
            worst.doubled,
            "",
            worst.in_flight,
            tuple(one.doubled for one in killed),
            tuple(one.in_flight for one in killed),
            or_equal=True,
        ),
        _seconds("term_seconds", "SIGTERM, longest way of an event", [one.seconds for one in stopped], TERM_TARGET),
        Figure("term_doubled", "SIGTERM, events that came twice", doubled, "", 0, or_equal=True),
        _seconds("cold_seconds", "start of the process to the first event that waited", cold, COLD_TARGET),
    )
    facts = {
        "store": store,
        "rate": RATE,
        "events": [one.events for one in (*killed, *stopped)],
        "max_in_flight": max((one.limit for one in killed), default=0),
    }
    says = f"a relay goes, another is there; {store} store, {RATE:g} transactions a second"
    return Result(("handover",), says, figures, facts, cores)


def measure_handover(scene: Scene, store: str, number: signal.Signals) -> Handover:
    """Two relays under load, one of which gets the signal.

    Raises:
        StartError: events did not arrive, or a relay could not be started.
    """
    dsn = scene.empty()
    load = Load(scene.job(store, dsn), RATE, _BEFORE + scene.plan.effort.handover_seconds)
    with Gauge.fresh() as gauge:
        job = scene.job(store, dsn, gauge=str(gauge.path))
        staying_job = scene.job(store, dsn)
        with (
            Measured.module(SUBJECT, job.dumps()) as leaving,
            Measured.module(SUBJECT, staying_job.dumps()) as staying,
        ):
            leaving.heard("up")
            staying.heard("up")
            if store == "log":
                wait_until_shared(dsn, 2)
            with Arrivals(job.broker, job.topic, PARTITIONS, load.timings) as arrivals:
                written = load.in_background()
                time.sleep(_BEFORE)
                at = time.monotonic()
                leaving.end(number)
                in_flight = gauge.in_flight
                written()
                arrivals.wait()
            staying.end()
        timings = load.timings
        ways = [came - when for when, came in zip(timings.committed, timings.came, strict=True) if came >= at]
        return Handover(max(ways, default=0.0), timings.commits, timings.doubled, in_flight, gauge.limit)


def measure_cold_start(scene: Scene, store: str) -> float:
    """Seconds from starting a relay's process to the first of the events that waited for it."""
    job = scene.job(store, scene.empty())
    load = Load(job, RATE, _WAITING / RATE)
    load.in_background()()
    with Arrivals(job.broker, job.topic, PARTITIONS, load.timings) as arrivals:
        began = time.monotonic()
        with Measured.module(SUBJECT, job.dumps()) as process:
            process.heard("up")
            arrivals.wait()
            process.end()
    return min(came for came in load.timings.came if came) - began


def _seconds(key: str, says: str, samples: Sequence[float], target: float) -> Figure:
    return Figure(key, says, statistics.median(samples), "s", target, tuple(samples))
