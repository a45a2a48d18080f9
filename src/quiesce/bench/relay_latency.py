"""From commit to consumer: a writer and a consumer around a relay that runs in a process of its own."""

import statistics
import time
from dataclasses import dataclass
from typing import Any

from quiesce.bench.cores import Shares
from quiesce.bench.figures import Figure
from quiesce.bench.processes import Measured
from quiesce.bench.relay_arrivals import Arrivals
from quiesce.bench.relay_load import Load
from quiesce.bench.relay_scene import PARTITIONS, SUBJECT, Scene
from quiesce.bench.results import Result

RATE = 200.0
"""Transactions a second, of one event each."""
P50_TARGET, P99_TARGET = 2.0, 5.0
"""Milliseconds from commit to consumer."""
BUSY_TARGET, IDLE_TARGET = 0.15, 0.01
"""Shares of one core that the relay may use meanwhile, and when nothing comes."""

_WARM_UP = 1.0
"""Seconds of load that are not counted."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from the return of COMMIT to the consumer; shares of one core that the relay used.

    `per_second`: events a second that were committed; `idle`: who used the cores while nothing came, None where that
    was not looked at.
    """

    rate: float
    p50: float
    p99: float
    events: int
    per_second: float
    busy_share: float
    idle: Shares | None
    cores: Shares

    def result(self, store: str) -> Result:
        idle = {} if self.idle is None else self.idle.parts
        figures = (
            Figure("p50", "half of the events, from commit to consumer", self.p50, "ms", P50_TARGET),
            Figure("p99", "99 of 100", self.p99, "ms", P99_TARGET),
            Figure("busy_share", "of a core that the relay uses", self.busy_share, "", BUSY_TARGET),
            Figure("idle_share", "the same when nothing comes", idle.get("relay", 0.0), "", IDLE_TARGET),
        )
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
        return Result(("latency_ms",), says, figures, facts, self.cores)

    def point(self) -> dict[str, Any]:
        """For a curve."""
        return {
            "rate": self.rate,
            "p50": round(self.p50, 3),
            "p99": round(self.p99, 3),
            "events": self.events,
            "per_second": round(self.per_second, 1),
            "share": round(self.busy_share, 4),
        }


def measure_latency(scene: Scene, store: str, rate: float, seconds: float, idle_seconds: float) -> Latency:
    """One relay with an otherwise empty outbox, `rate` transactions a second of one event each.

    `idle_seconds` without any load follow; 0 for none.

    Raises:
        StartError: events did not arrive.
    """
    job = scene.job(store, scene.empty())
    load = Load(job, rate, seconds + _WARM_UP)
    with Measured.module(SUBJECT, job.dumps()) as relay:
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
    taken = load.timings.ways(load.began + _WARM_UP)
    cuts = statistics.quantiles(taken, n=100)
    return Latency(rate, cuts[49], cuts[98], len(taken), load.per_second, used.parts["relay"], idle, used)
