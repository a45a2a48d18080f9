"""From commit to consumer: a writer and a consumer around a relay that runs in a process of its own.

Around a loop that one would write first, too, in turns: how much of the way is the machine's, the broker's and the
consumer's differs from machine to machine, and is the same for both.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quiesce.bench.cores import Shares
from quiesce.bench.figures import Figure
from quiesce.bench.processes import Measured
from quiesce.bench.relay_arrivals import Arrivals
from quiesce.bench.relay_load import Load
from quiesce.bench.relay_scene import PARTITIONS, PROBING, SUBJECT, Scene
from quiesce.bench.results import Result

RATE = 200.0
"""Transactions a second, of one event each."""
P50_TARGET, P99_TARGET = 2.0, 5.0
"""Milliseconds from commit to consumer."""
BUSY_TARGET, IDLE_TARGET = 0.15, 0.01
"""Shares of one core that the relay may use meanwhile, and when nothing comes."""
P50_LOOP, P99_LOOP, BUSY_LOOP = 1.7, 3.4, 0.08
"""What the loop took on the machine that these targets were set on. On another machine both are to be expected to take
so many times as long: what is asked there is the same ratio."""

_WARM_UP = 1.0
"""Seconds of each load that are not counted."""
_WARM_UP_RATE = 1_000.0
"""Transactions a second of the load before all others."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What came of one load.

    Args:
        ms: milliseconds from the return of COMMIT to the consumer, of each event.
        per_second: events a second that were committed.
        cores: who used the cores meanwhile; the relay, or the loop, as `relay`.
        idle: the same afterwards, while nothing came; None where that was not looked at.
    """

    ms: Sequence[float]
    per_second: float
    cores: Shares
    idle: Shares | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """The loads of one rate, `beside` those of the loop at the same rate; none where it was not measured."""

    rate: float
    ways: Sequence[Ways]
    beside: Sequence[Ways] = ()

    @property
    def p50(self) -> float:
        """Milliseconds: the median of the turns', as all of these."""
        return statistics.median(_cuts(self.ways, 50))

    @property
    def p99(self) -> float:
        return statistics.median(_cuts(self.ways, 99))

    @property
    def events(self) -> int:
        return sum(len(one.ms) for one in self.ways)

    @property
    def busy_share(self) -> float:
        """Of one core, that the relay used."""
        return _share(self.ways)

    def result(self, store: str) -> Result:
        idle: dict[str, float] = next((one.idle.parts for one in self.ways if one.idle is not None), {})
        figures = [
            self._way("p50", "half of the events, from commit to consumer", 50, P50_TARGET),
            self._way("p99", "99 of 100", 99, P99_TARGET),
            Figure("busy_share", "of a core that the relay uses", self.busy_share, "", BUSY_TARGET),
            Figure("idle_share", "the same when nothing comes", idle.get("relay", 0.0), "", IDLE_TARGET),
        ]
        facts = {
            "store": store,
            **self.point(),
            "rate": self.rate,
            "relay_cpu_share": round(self.busy_share, 4),
            "relay_idle_cpu_share": round(idle.get("relay", 0.0), 4),
            # What a relay has the server do while it waits is a cost, too.
            "idle_cores": {name: round(share, 4) for name, share in idle.items()},
        }
        says = f"commit to consumer, {store} store, at {self.rate:g} transactions a second, {self.events:,} events"
        if self.beside:
            p50, p99 = (statistics.median(_cuts(self.beside, percent)) for percent in (50, 99))
            loop = {"p50": p50, "p99": p99, "busy_share": _share(self.beside)}
            busy = max(loop["busy_share"], 1e-6)
            figures += [
                Figure(
                    "p50_ratio",
                    "half of the events, beside the loop",
                    self.p50 / loop["p50"],
                    "",
                    P50_TARGET / P50_LOOP,
                ),
                Figure("p99_ratio", "99 of 100, beside the loop", self.p99 / loop["p99"], "", P99_TARGET / P99_LOOP),
                Figure("busy_ratio", "CPU beside the loop", self.busy_share / busy, "", BUSY_TARGET / BUSY_LOOP),
            ]
            facts["loop"] = {name: round(value, 4) for name, value in loop.items()}
            says += (
                f"; the loop takes {loop['p50']:.2f} ms, 99 of 100 {loop['p99']:.2f} ms, at {loop['busy_share']:.3f} "
                "of a core"
            )
        return Result(("latency_ms",), says, tuple(figures), facts, self.ways[0].cores)

    def _way(self, key: str, says: str, percent: int, target: float) -> Figure:
        ours, loop = (tuple(_cuts(ways, percent)) for ways in (self.ways, self.beside))
        return Figure(key, says, statistics.median(ours), "ms", target, ours, loop)

    def point(self) -> dict[str, Any]:
        """For a curve."""
        return {
            "rate": self.rate,
            "p50": round(self.p50, 3),
            "p99": round(self.p99, 3),
            "events": self.events,
            "per_second": round(statistics.mean(one.per_second for one in self.ways), 1),
            "share": round(self.busy_share, 4),
        }


def measure_latency(scene: Scene, store: str) -> Latency:
    """Our relay and the loop in turns, each with an otherwise empty outbox. While nothing comes only ours is looked at.

    They take turns in who goes first, behind a load that does not count: a broker that was just started is slow.

    Raises:
        StartError: events did not arrive.
    """
    effort = scene.plan.effort
    ours: list[Ways] = []
    loop: list[Ways] = []
    seconds = effort.latency_seconds / effort.latency_turns

    def relay(idle_seconds: float = 0.0) -> None:
        ours.append(measure_ways(scene, SUBJECT, store, RATE, seconds, idle_seconds))

    def plain() -> None:
        # The loop reads the log, whatever the store.
        loop.append(measure_ways(scene, PROBING, "log", RATE, seconds))

    if effort.latency_warm_up and "throughput" not in scene.plan.parts:
        # By our relay: the loop loses what several writers commit out of order.
        measure_ways(scene, SUBJECT, store, _WARM_UP_RATE, effort.latency_warm_up)
    for turn in range(effort.latency_turns):
        if turn % 2:
            plain()
            relay()
        else:
            relay(0.0 if turn else effort.idle_seconds)
            plain()
        both = " and ".join(f"{_cut(one, 50):.2f} ms, 99 of 100 {_cut(one, 99):.2f} ms" for one in (ours[-1], loop[-1]))
        scene.say(f"turn {turn + 1} of {effort.latency_turns}, the relay and the loop: {both}")
    return Latency(RATE, ours, loop)


def measure_ways(scene: Scene, module: str, store: str, rate: float, seconds: float, idle_seconds: float = 0.0) -> Ways:
    """`rate` transactions a second of one event each, for `seconds`, and then `idle_seconds` without any load.

    Raises:
        StartError: events did not arrive.
    """
    job = scene.job(store, scene.empty())
    load = Load(job, rate, seconds + _WARM_UP)
    with Measured.module(module, job.dumps()) as relay:
        relay.heard("up")
        with Arrivals(job.broker, job.topic, PARTITIONS, load.timings) as arrivals:
            cores = scene.servers.cores(relay=relay.pid)
            load.in_background()()
            used = cores.used()
            arrivals.wait()
        idle = None
        if idle_seconds:
            cores = scene.servers.cores(relay=relay.pid)
            time.sleep(idle_seconds)
            idle = cores.used()
        relay.end()
    return Ways(load.timings.ways(load.began + _WARM_UP), load.per_second, used, idle)


def _cut(ways: Ways, percent: int) -> float:
    """Milliseconds that so many of a hundred events took at most."""
    return statistics.quantiles(ways.ms, n=100)[percent - 1]


def _cuts(ways: Sequence[Ways], percent: int) -> list[float]:
    return [_cut(one, percent) for one in ways]


def _share(ways: Sequence[Ways]) -> float:
    seconds = sum(one.cores.seconds for one in ways)
    return sum(one.cores.seconds * one.cores.parts["relay"] for one in ways) / seconds
