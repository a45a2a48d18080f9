"""Curves: throughput against the size of a page, latency against the rate of events."""

from typing import Any

from quiesce.bench.relay_latency import Latency, measure_ways
from quiesce.bench.relay_measures import Throughput, measure_throughput, together
from quiesce.bench.relay_scene import SUBJECT, Scene
from quiesce.bench.results import Result

_PER_PAGE = 1_000
"""Events that are moved for each event of a page, at most: small pages are slow."""


def measure_pages(scene: Scene, store: str) -> Result:
    """Our relay and the bare loop, with as many pages in flight, each size in a run of its own."""
    effort = scene.plan.effort
    points: list[dict[str, Any]] = []
    all_moves = []
    for page in effort.pages:
        events = min(effort.page_events, page * _PER_PAGE, scene.plan.events)
        one = measure_throughput(scene, store, page, events, effort.page_rounds)
        points.append(_point(one))
        all_moves += [*one.ours, *one.bare]
    best = max(points, key=lambda point: point["events_per_second"])
    says = (
        f"throughput against the size of a page, {store} store: best at {best['page']:,} with "
        f"{best['events_per_second']:,} events/s"
    )
    return Result(("sweep", "pages", store), says, (), {"points": points}, together(all_moves))


def _point(one: Throughput) -> dict[str, Any]:
    return {
        "page": one.page,
        "events_per_second": round(one.events_per_second),
        "bare_events_per_second": round(one.bare_events_per_second),
    }


def measure_rates(scene: Scene, store: str) -> Result:
    """The way from commit to consumer at one rate after the other."""
    effort = scene.plan.effort
    points = []
    cores = scene.servers.cores()
    for rate in effort.rates:
        # At a low rate as many events as give a 99th percentile that says something, within reason.
        seconds = effort.rate_seconds * (4 if rate < 100 else 1)
        one = Latency(rate, (measure_ways(scene, SUBJECT, store, rate, seconds),))
        points.append(one.point())
        scene.say(f"{rate:g} transactions a second: {one.p50:.2f} ms, 99 of 100 {one.p99:.2f} ms")
    says = f"latency against the rate of events, {store} store: " + ", ".join(
        f"{point['p50']:.1f}/{point['p99']:.1f} ms at {point['rate']:g}" for point in points
    )
    return Result(("sweep", "rates", store), says, (), {"points": points}, cores.used())
