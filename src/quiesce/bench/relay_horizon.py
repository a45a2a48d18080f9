"""A transaction that somebody forgot holds xmin, so nothing can be cleaned up: does the relay get slower?"""

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from quiesce.bench.figures import Figure
from quiesce.bench.processes import Measured
from quiesce.bench.relay_arrivals import Arrivals
from quiesce.bench.relay_load import Load, Timings
from quiesce.bench.relay_scene import PARTITIONS, SUBJECT, Scene
from quiesce.bench.results import Result
from quiesce.errors import StartError
from quiesce.postgres import connect

LEAST, MOST = 0.9, 1.1
"""Of the beginning's events a second, and of its 99th percentile."""
REACHED = 0.97
"""Of the events a second that are asked for. With fewer the relay is measured behind a backlog."""

_EACH = 10
"""Events of a transaction."""
_EDGE = 0.2
"""The part of the windows that is the beginning, and the part that is the end."""
_TELL = 30.0
_OPEN_BOUND = 10.0

_HELD = """
SELECT coalesce(max(age(backend_xmin)), 0)::int FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'bench-forgotten'
"""
_DEAD = "SELECT coalesce(sum(n_dead_tup), 0)::int FROM pg_stat_user_tables"


@dataclass(frozen=True, slots=True)
class Window:
    """Of the load between two instants: events a second that came, and milliseconds from commit to consumer."""

    per_second: float
    p50: float
    p99: float


def windows(timings: Timings, began: float, length: float, number: int) -> list[Window]:
    """What came in each of `number` windows of `length` seconds, and how long what was committed in it took."""
    arrived = [0] * number
    for came in timings.came:
        if came and 0 <= (place := int((came - began) // length)) < number:
            arrived[place] += 1
    found = []
    for place in range(number):
        ways = timings.ways(began + place * length, began + (place + 1) * length)
        if len(ways) < 2:
            raise StartError(f"no events in window {place + 1} of {number}, so there is nothing to compare")
        cuts = statistics.quantiles(ways, n=100)
        found.append(Window(arrived[place] / length, cuts[49], cuts[98]))
    return found


def compared(found: Sequence[Window]) -> tuple[float, float]:
    """The end beside the beginning, medians of a fifth of the windows each: events a second, and 99th percentile."""
    first, last = found[: edge(found)], found[-edge(found) :]

    def ratio(of: Callable[[Window], float]) -> float:
        # Where next to nothing came at the beginning, there is nothing to be measured by.
        return statistics.median(map(of, last)) / max(statistics.median(map(of, first)), 1e-3)

    return ratio(lambda one: one.per_second), ratio(lambda one: one.p99)


def edge(found: Sequence[Window]) -> int:
    """How many windows are the beginning, and how many the end."""
    return max(1, round(len(found) * _EDGE))


def measure_horizon(scene: Scene, store: str) -> Result:
    """One relay under load, and a transaction that is open from before it until after it."""
    effort = scene.plan.effort
    dsn = scene.empty()
    job = scene.job(store, dsn)
    number = max(2, round(effort.horizon_seconds / effort.window))
    warm_up = effort.window / 2
    load = Load(job, effort.horizon_rate / _EACH, number * effort.window + warm_up, each=_EACH)
    with Measured.module(SUBJECT, job.dumps()) as relay, _forgotten(dsn):
        relay.heard("up")
        with Arrivals(job.broker, job.topic, PARTITIONS, load.timings) as arrivals:
            cores = scene.servers.cores(relay=relay.pid)
            written = load.in_background()
            _tell(scene, load, number * effort.window + warm_up)
            written()
            used = cores.used()
            arrivals.wait()
        age, dead = asyncio.run(_seen(dsn))
        relay.end()
    found = windows(load.timings, load.began + warm_up, effort.window, number)
    rate, p99 = compared(found)
    began = statistics.median(one.per_second for one in found[: edge(found)])
    reached = effort.horizon_rate * REACHED
    figures = (
        Figure("began_at", "events a second at the beginning", began, "/s", reached, at_least=True),
        Figure("throughput_ratio", "events a second, the end beside the beginning", rate, "", LEAST, at_least=True),
        Figure("p99_ratio", "99 of 100 from commit to consumer, likewise", p99, "", MOST, or_equal=True),
    )
    facts = {
        "store": store,
        "rate": effort.horizon_rate,
        "seconds": round(number * effort.window, 1),
        "horizon_age": age,
        "dead_tuples": dead,
        "doubled": load.timings.doubled,
        "windows": [
            {"per_second": round(one.per_second), "p50": round(one.p50, 2), "p99": round(one.p99, 2)} for one in found
        ],
    }
    says = (
        f"a forgotten transaction for {number * effort.window:,.0f} s at {effort.horizon_rate:,.0f} events a second: "
        f"xmin {age:,} transactions behind, {dead:,} dead rows; {found[0].per_second:,.0f}/s and "
        f"{found[0].p99:.1f} ms became {found[-1].per_second:,.0f}/s and {found[-1].p99:.1f} ms"
    )
    return Result(("horizon",), says, figures, facts, used)


def _tell(scene: Scene, load: Load, seconds: float) -> None:
    """Says how it goes until the writer is done, or should have been."""
    began = time.monotonic()
    while not load.over.wait(_TELL) and (passed := time.monotonic() - began) < seconds:
        scene.say(f"{load.timings.arrivals:,} events came, {seconds - passed:.0f} s left")


async def _seen(dsn: str) -> tuple[int, int]:
    async with connect(dsn, name="bench") as connection:
        return int(await connection.fetchval(_HELD)), int(await connection.fetchval(_DEAD))


@contextmanager
def _forgotten(dsn: str) -> Iterator[None]:
    """An idle transaction that holds xmin: it has a snapshot and does nothing."""
    open_, over = threading.Event(), threading.Event()

    async def hold() -> None:
        async with connect(dsn, name="bench") as connection:
            await connection.execute("SET application_name = 'bench-forgotten'")
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.fetchval("SELECT 1")
                open_.set()
                await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(hold()), name="bench-forgotten", daemon=True)
    thread.start()
    try:
        if not open_.wait(_OPEN_BOUND):
            raise StartError("the transaction that is to be forgotten could not be opened")
        yield
    finally:
        over.set()
        thread.join(_OPEN_BOUND)
