"""Two relays that share the lanes beside one that has them all, and whether the topic has every key in order."""

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass

from quiesce.bench.cores import Shares
from quiesce.bench.figures import Figure
from quiesce.bench.processes import Measured
from quiesce.bench.relay_gauge import Gauge
from quiesce.bench.relay_lanes import paused, resumed, wait_until_shared
from quiesce.bench.relay_measures import MOVE_BOUND
from quiesce.bench.relay_order import OrderCheck, Stretch
from quiesce.bench.relay_scene import PARTITIONS, SUBJECT, Scene
from quiesce.bench.results import Result
from quiesce.errors import StartError

NO_SLOWER = 1.0
"""Of one relay's events a second."""

_SAMPLE = 0.01
_STALL_BOUND = 30.0


@dataclass(frozen=True, slots=True)
class Turn:
    """So many relays moved the beginning of a backlog: events a second together, and what each of them moved."""

    per_second: float
    moved: tuple[int, ...]
    order: OrderCheck | None
    cores: Shares


def measure_pair(scene: Scene) -> Result:
    """One, two, two, one ...: the backlog's first events each time, on a fresh copy."""
    effort = scene.plan.effort
    turns: dict[int, list[Turn]] = {1: [], 2: []}
    longest = 0.0
    for number in range(effort.pair_turns):
        at = time.monotonic()
        if number and not scene.time_for("pair", longest):
            scene.say(f"{number} of {effort.pair_turns} turns, no time for more")
            break
        for relays in (1, 2) if number % 2 == 0 else (2, 1):
            turn = _turn(scene, relays, min(effort.pair_events, max(1, scene.plan.events // 3)))
            turns[relays].append(turn)
            who = "two relays" if relays == 2 else "one relay"
            scene.say(f"turn {number + 1} of {effort.pair_turns}: {who}, {turn.per_second:,.0f}/s")
        longest = max(longest, time.monotonic() - at)
    one, two = ([turn.per_second for turn in turns[relays]] for relays in (1, 2))
    ratio = statistics.median(two) / statistics.median(one)
    every = turns[1] + turns[2]
    orders = [turn.order for turn in every if turn.order is not None]
    read = sum(order.events for order in orders)
    figures = [Figure("ratio", "beside one relay", ratio, "", NO_SLOWER, tuple(two), tuple(one), at_least=True)]
    if orders:
        disordered, doubled = (sum(getattr(order, of) for order in orders) for of in ("disordered", "doubled"))
        figures += [
            Figure("disordered", "events out of the order of their key", disordered, "", 0, or_equal=True),
            Figure("doubled", "events that came twice, with a stop in each turn", doubled, "", 0, or_equal=True),
        ]
    facts = {
        "one_events_per_second": round(statistics.median(one)),
        "two_events_per_second": round(statistics.median(two)),
        "checked_events": read,
        "moved_by": [list(turn.moved) for turn in turns[2]],
    }
    says = f"two relays on 16 lanes: {statistics.median(two):,.0f} events/s, one {statistics.median(one):,.0f}; " + (
        f"{read:,} events read from the topic" if orders else "order not checked: Tansu tells its ends too late"
    )
    return Result(("pair",), says, tuple(figures), facts, turns[2][-1].cores)


def _turn(scene: Scene, relays: int, events: int) -> Turn:
    stretch = Stretch(scene.servers.bootstrap, scene.topic, PARTITIONS)
    with ExitStack() as stack:
        dsn = stack.enter_context(scene.backlog(scene.plan.events).copy())
        gauges = [stack.enter_context(Gauge.fresh()) for _ in range(relays)]
        # Held back until the lanes are shared out: otherwise the first is done before the second is up.
        paused(dsn)
        jobs = [scene.job("log", dsn, gauge=str(gauge.path), bulk=True) for gauge in gauges]
        processes = [stack.enter_context(Measured.module(SUBJECT, job.dumps())) for job in jobs]
        for process in processes:
            process.heard("up")
        wait_until_shared(dsn, relays)
        names = {f"relay_{number + 1}": process.pid for number, process in enumerate(processes)}
        resumed(dsn)
        cores = scene.servers.cores(**names)
        per_second = _watch(gauges, events)
        used = cores.used()
        for process in processes:
            if (end := process.end()).status != 0:
                raise StartError(f"a relay of the bench ended with status {end.status}")
        # Tansu tells the end of a partition as it was before the last batch.
        order = None if scene.plan.broker == "tansu" else stretch.check(scene.plan.keys)
        return Turn(per_second, tuple(gauge.moved for gauge in gauges), order, used)


def _watch(gauges: list[Gauge], events: int) -> float:
    """Events a second from the moment at which every relay has settled a claim; if the events are too few for that,
    from when they were let go."""
    began = time.monotonic()
    until = began + _STALL_BOUND
    all_at = (0.0, 0)
    moved = 0
    while moved < events:
        time.sleep(_SAMPLE)
        now = time.monotonic()
        settled = [gauge.moved for gauge in gauges]
        if sum(settled) > moved:
            until = now + _STALL_BOUND
        moved = sum(settled)
        if now > min(until, began + MOVE_BOUND):
            raise StartError(f"relays stood still after {moved:,} of {events:,} events")
        if all(settled) and not all_at[1]:
            all_at = (now, moved)
    at, before = all_at if all_at[1] and moved - all_at[1] >= events / 2 else (began, 0)
    return (moved - before) / (max(gauge.last_at for gauge in gauges) - at)
