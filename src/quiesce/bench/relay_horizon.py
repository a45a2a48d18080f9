"""A transaction that somebody forgot holds xmin, so nothing can be cleaned up: does the relay get slower?

A machine that others share gets slower and quicker by more than what is asked within ten minutes. So a second relay
runs at the same time, on another database of the same server: a held xmin holds for its database only. They share
the cores, so what the first makes the server do is felt by the second, too. Therefore the same is asked of the first
alone and beside the second.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Self

from quiesce.bench.figures import Figure
from quiesce.bench.processes import Measured
from quiesce.bench.relay_arrivals import Arrivals
from quiesce.bench.relay_job import Job
from quiesce.bench.relay_load import Load
from quiesce.bench.relay_scene import PARTITIONS, SUBJECT, Scene
from quiesce.bench.relay_windows import Window, beginning, drift, windows
from quiesce.bench.results import Result
from quiesce.errors import StartError
from quiesce.postgres import connect

LEAST, MOST = 0.9, 1.1
"""Of the beginning's events a second, and of its 99th percentile."""
REACHED = 0.97
"""Of the events a second that are asked for. With fewer the relay is measured behind a backlog."""

_EACH, _EACH_BESIDE = 10, 4
"""Events of a transaction."""
_TELL = 30.0
_OPEN_BOUND = 10.0

_HELD = """
SELECT coalesce(max(age(backend_xmin)), 0)::int FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'bench-forgotten'
"""
# The server's own limits must not end it. One of them is not known to older servers.
_FORGOTTEN = """
SET application_name = 'bench-forgotten'; SET idle_in_transaction_session_timeout = 0;
SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'
"""
_DEAD = "SELECT coalesce(sum(n_dead_tup), 0)::int FROM pg_stat_user_tables"


class _Side:
    """A database with a relay of its own, a load on it, and who reads what comes. A context manager.

    `seconds` of load at `rate` events a second, so many to `each` transaction, after `warm_up` seconds that do not
    count.
    """

    def __init__(self, job: Job, rate: float, each: int, seconds: float, warm_up: float) -> None:
        self._job = job
        self._warm_up = warm_up
        self.load = Load(job, rate / each, seconds + warm_up, each=each)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.relay = stack.enter_context(Measured.module(SUBJECT, self._job.dumps()))
            self.relay.heard("up")
            broker, topic = self._job.broker, self._job.topic
            self._arrivals = stack.enter_context(Arrivals(broker, topic, PARTITIONS, self.load.timings))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.load.stopped.set()
        self._stack.close()

    def end(self) -> None:
        """Waits for what is still on its way, and ends the relay."""
        self._arrivals.wait()
        self.relay.end()

    def windows(self, length: float, number: int) -> list[Window]:
        return windows(self.load.timings, self.load.began + self._warm_up, length, number)


def measure_horizon(scene: Scene, store: str) -> Result:
    """Two relays under load, and beside one a transaction that is open from before it until after it."""
    effort = scene.plan.effort
    number = max(2, round(effort.horizon_seconds / effort.window))
    seconds, warm_up = number * effort.window, effort.window / 2
    dsn, beside = scene.empty(), scene.empty()
    with ExitStack() as stack:
        topic = stack.enter_context(scene.another_topic())
        stack.enter_context(_forgotten(dsn))
        held = stack.enter_context(_Side(scene.job(store, dsn), effort.horizon_rate, _EACH, seconds, warm_up))
        job = replace(scene.job(store, beside), topic=topic)
        free = stack.enter_context(_Side(job, effort.beside_rate, _EACH_BESIDE, seconds, warm_up))
        cores = scene.servers.cores(relay=held.relay.pid, beside=free.relay.pid)
        written = held.load.in_background(), free.load.in_background()
        _tell(scene, held.load, free.load, seconds + warm_up)
        for ended in written:
            ended()
        used = cores.used()
        age, dead = asyncio.run(_seen(dsn))
        held.end()
        free.end()
    found, reference = (side.windows(effort.window, number) for side in (held, free))
    p99, other = ([one.p99 for one in of] for of in (found, reference))
    rates = [one.per_second for one in found]
    ratios = [ours / theirs for ours, theirs in zip(p99, other, strict=True)]
    reached = effort.horizon_rate * REACHED
    figures = (
        Figure("began_at", "events a second at the beginning", beginning(rates), "/s", reached, at_least=True),
        Figure(
            "throughput_ratio", "events a second, the end beside the beginning", drift(rates), "", LEAST, at_least=True
        ),
        Figure("p99_ratio", "99 of 100 from commit to consumer, likewise", drift(p99), "", MOST, or_equal=True),
        Figure("beside_ratio", "the same beside a relay where nothing is held", drift(ratios), "", MOST, or_equal=True),
        Figure("free_p99_ratio", "that relay's own", drift(other), ""),
    )
    facts = {
        "store": store,
        "rate": effort.horizon_rate,
        "beside_rate": effort.beside_rate,
        "seconds": round(seconds, 1),
        "horizon_age": age,
        "dead_tuples": dead,
        "doubled": held.load.timings.doubled,
        "windows": _told(found),
        "beside": _told(reference),
    }
    says = (
        f"a forgotten transaction for {seconds:,.0f} s at {effort.horizon_rate:,.0f} events a second: "
        f"xmin {age:,} transactions behind, {dead:,} dead rows; {found[0].per_second:,.0f}/s and "
        f"{p99[0]:.1f} ms became {found[-1].per_second:,.0f}/s and {p99[-1]:.1f} ms; "
        f"without it {other[0]:.1f} ms became {other[-1]:.1f} ms"
    )
    return Result(("horizon",), says, figures, facts, used)


def _told(found: list[Window]) -> list[dict[str, float]]:
    return [{"per_second": round(one.per_second), "p50": round(one.p50, 2), "p99": round(one.p99, 2)} for one in found]


def _tell(scene: Scene, load: Load, other: Load, seconds: float) -> None:
    """Says how it goes until one of the writers is done, or both should have been."""
    began = time.monotonic()
    while not load.over.wait(_TELL) and not other.over.is_set() and (passed := time.monotonic() - began) < seconds:
        scene.say(f"{load.timings.arrivals:,} events came, {seconds - passed:.0f} s left")


async def _seen(dsn: str) -> tuple[int, int]:
    async with connect(dsn, name="bench") as connection:
        age = int(await connection.fetchval(_HELD))
        if not age:
            raise StartError("nothing held xmin any more at the end: the server has ended the forgotten transaction")
        return age, int(await connection.fetchval(_DEAD))


@contextmanager
def _forgotten(dsn: str) -> Iterator[None]:
    """An idle transaction that holds xmin: it has a snapshot and does nothing."""
    open_, over = threading.Event(), threading.Event()

    async def hold() -> None:
        async with connect(dsn, name="bench") as connection:
            await connection.execute(_FORGOTTEN)
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
