"""One whole run of `quiesce bench relay`: servers, then part after part."""

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

from quiesce.bench.relay_handover import measure_handovers
from quiesce.bench.relay_horizon import measure_horizon
from quiesce.bench.relay_latency import measure_latency
from quiesce.bench.relay_measures import measure_throughput, move_backlog
from quiesce.bench.relay_memory import measure_memory
from quiesce.bench.relay_pair import measure_pair
from quiesce.bench.relay_peers import measure_peer
from quiesce.bench.relay_plan import PARTS, Plan
from quiesce.bench.relay_rates import PeerFigure
from quiesce.bench.relay_scene import SUBJECT, Say, Scene, scene
from quiesce.bench.relay_sweeps import measure_pages, measure_rates
from quiesce.bench.relay_wakeup import measure_wakeup
from quiesce.bench.results import Result
from quiesce.errors import StartError

_SWITCH_INTERVAL = 0.0005
"""Seconds. The consumer's thread must not wait for the writer's, or the relay would be blamed for it."""

_BESIDE = 300_000
"""Events that our store moves before a peer does, and after it."""


def measure(plan: Plan, say: Say) -> Iterator[Result]:
    """Yields each result as soon as it is there. A part that fails is told as such, and the next one follows.

    Raises:
        StartError: a server could not be started.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        with scene(plan, say) as where:
            for name in PARTS:
                if name in plan.parts:
                    say(f"{name}: {PARTS[name]}")
                    yield from told_of(name, PARTS[name], _MEASURES[name](where))
            for peer in plan.peers:
                yield from told_of(peer, peer, _peer(where, peer))
    finally:
        sys.setswitchinterval(before)


def told_of(name: str, says: str, part: Iterator[Result]) -> Iterator[Result]:
    """The results of a part, and in the end that it failed if it did: half an hour of figures is not lost for it."""
    try:
        yield from part
    except StartError as error:
        yield Result(("failed", name), says, failed=str(error))


def _throughput(where: Scene) -> Iterator[Result]:
    plan = where.plan
    for store in plan.stores:
        events = plan.events if store == "log" else min(plan.events, plan.effort.row_events)
        yield measure_throughput(where, store, plan.page, events, plan.effort.rounds).result()


def _latency(where: Scene) -> Iterator[Result]:
    store = where.plan.first_store
    yield measure_latency(where, store).result(store)


def _peer(where: Scene, name: str) -> Iterator[Result]:
    """A peer between two moves of our own: the machine of a quarter of an hour ago may have been another one."""
    plan, servers = where.plan, where.servers
    store = plan.first_store
    filled = plan.events if store == "log" else min(plan.events, plan.effort.row_events)
    job = where.job(store, events=min(filled, _BESIDE))

    def ours() -> float:
        where.say(f"our {store} store, beside {name}")
        return move_backlog(where, SUBJECT, job, where.backlog(filled, store)).per_second

    before = ours()
    figure = measure_peer(
        name,
        servers.database,
        servers.bootstrap,
        keys=plan.keys,
        payload=plan.payload,
        quick=plan.quick,
        ours=(store, before),
        say=where.say,
    )
    if isinstance(figure, PeerFigure):
        figure = replace(figure, ours=statistics.mean((before, ours())))
    yield figure.result()


def _pair(where: Scene) -> Iterator[Result]:
    # Lanes are the log store's.
    if "log" in where.plan.stores:
        yield measure_pair(where)


def _pages(where: Scene) -> Iterator[Result]:
    for store in where.plan.stores:
        yield measure_pages(where, store)


def _one(of: Callable[[Scene, str], Result], where: Scene) -> Iterator[Result]:
    """A part that is measured on one store only."""
    yield of(where, where.plan.first_store)


_MEASURES: dict[str, Callable[[Scene], Iterator[Result]]] = {
    "throughput": _throughput,
    "pair": _pair,
    "pages": _pages,
    "latency": _latency,
    "rates": lambda where: _one(measure_rates, where),
    "handover": lambda where: _one(measure_handovers, where),
    "wakeup": lambda where: _one(measure_wakeup, where),
    "horizon": lambda where: _one(measure_horizon, where),
    "memory": lambda where: _one(measure_memory, where),
}
