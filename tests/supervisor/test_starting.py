"""A start that is stopped, openings in tasks of the user's, and limits that change. On one loop, without processes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from quiesce import Budget, Part, Service, Stop, running, service
from quiesce.errors import SettingsError, StartInterrupted
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event, StopHastened
from quiesce.lifecycle.ports import Closed
from quiesce.lifecycle.report import ShutdownReport
from quiesce.supervisor.definition import ServiceDefinition
from quiesce.supervisor.runner import Runner

CALM = Budget(grace_period=30, prestop=0, http=8, workers=8, producers=5, pools=5, report=2, margin=1)
QUICK = Budget(grace_period=5, prestop=0, http=0.5, workers=0.5, producers=0.5, pools=0.5, report=0.5, margin=0.2)


@contextlib.asynccontextmanager
async def thing(order: list[str], name: str, opens_in: float = 0.0) -> AsyncIterator[None]:
    order.append(f"opening {name}")
    await asyncio.sleep(opens_in)
    order.append(f"opened {name}")
    try:
        yield
    finally:
        order.append(f"closed {name}")


async def nothing() -> None:
    return None


async def waits(stop: Stop) -> None:
    await stop.wait()


REGISTERS: dict[str, Callable[[Service], object]] = {
    "every": lambda s: s.every(1, nothing),
    "loop": lambda s: s.loop(waits),
    "thread": lambda s: s.thread(lambda stop: None, name="thread"),
    "http": lambda s: s.http(nothing, host="127.0.0.1", port=0),
}


@pytest.mark.parametrize("how", REGISTERS)
async def test_what_is_registered_behind_a_stop_of_the_start_is_no_failure(how: str) -> None:
    order: list[str] = []

    @service("nothing-to-do", budget=CALM)
    async def nothing_to_do(s: Service) -> None:
        await s.open(thing(order, "pool"), name="pool")
        s.stop("nothing to do")
        try:
            REGISTERS[how](s)
        except StartInterrupted:
            order.append("interrupted")
            raise

    async with running(nothing_to_do) as live:
        report = await live.stopped()
    assert order == ["opening pool", "opened pool", "interrupted", "closed pool"]
    assert (report.exit_code, report.errors, report.reason) == (0, [], "nothing to do")
    assert report.workers == []


async def stopped_once(definition: ServiceDefinition, begun: asyncio.Event) -> ShutdownReport:
    """Asked to stop once something has begun that may keep it from running."""
    runner = Runner(definition, hard_deadline=False)
    runner.begin()
    async with asyncio.timeout(20):
        await begun.wait()
        runner.stop("a test")
        return await runner.stopped


async def test_a_start_that_swallows_its_cancel_and_registers_is_no_failure() -> None:
    starting = asyncio.Event()

    @service("swallows", budget=CALM)
    async def swallows(s: Service) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            starting.set()
            await asyncio.sleep(3600)
        s.loop(waits)

    report = await stopped_once(swallows, starting)
    assert (report.exit_code, report.errors) == (0, [])


@pytest.mark.parametrize("heeds", [True, False])
async def test_an_opening_in_a_task_of_the_users_holds_the_closing(heeds: bool) -> None:
    """It is interrupted as one in the start-up function is; one that opens all the same is left at once."""
    order: list[str] = []
    opening = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def late() -> AsyncIterator[None]:
        opening.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.3)  # it needs what was opened before it
            order.append("undone")
            if heeds:
                raise
        yield
        order.append("closed late")

    @service("late", budget=CALM)
    async def start(s: Service) -> None:
        await s.open(thing(order, "pool"), name="pool")
        tasks.append(asyncio.create_task(s.open(late(), name="late")))

    report = await stopped_once(start, opening)
    late_one = [] if heeds else ["closed late"]
    assert order == ["opening pool", "opened pool", "undone", *late_one, "closed pool"]
    assert (report.exit_code, report.abandoned) == (0, [])
    assert tasks[0].cancelled()


async def test_an_opening_of_a_workers_is_work_in_hand_and_is_not_interrupted() -> None:
    order: list[str] = []
    opening, go_on = asyncio.Event(), asyncio.Event()

    @contextlib.asynccontextmanager
    async def of_worker() -> AsyncIterator[None]:
        opening.set()
        await go_on.wait()
        yield
        order.append("closed of worker")

    async def opens(stop: Stop, s: Service) -> None:
        await asyncio.gather(s.open(of_worker(), name="of worker"))
        order.append("opened by the worker")

    @service("opens", budget=CALM)
    async def start(s: Service) -> None:
        await s.open(thing(order, "pool"), name="pool")
        s.loop(opens, s)

    asyncio.get_running_loop().call_later(0.3, go_on.set)
    report = await stopped_once(start, opening)
    assert order == ["opening pool", "opened pool", "opened by the worker", "closed of worker", "closed pool"]
    assert (report.exit_code, report.errors) == (0, [])


async def test_an_opening_behind_a_shield_is_interrupted_as_well() -> None:
    order: list[str] = []
    opening = asyncio.Event()

    @contextlib.asynccontextmanager
    async def shielded() -> AsyncIterator[None]:
        opening.set()
        await asyncio.sleep(3600)
        yield

    @service("shield", budget=CALM)
    async def start(s: Service) -> None:
        await s.open(thing(order, "pool"), name="pool")
        await asyncio.shield(s.open(shielded(), name="shielded"))

    report = await stopped_once(start, opening)
    assert report.exit_code == 0
    assert [resource.resource for resource in report.resources] == ["pool"]


async def test_an_opening_of_the_users_that_does_not_end_is_named() -> None:
    order: list[str] = []
    opening, go_on = asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def stubborn() -> AsyncIterator[None]:
        opening.set()
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()  # it does not end
        yield

    @service("stubborn", budget=QUICK)
    async def start(s: Service) -> None:
        await s.open(thing(order, "pool"), name="pool")
        tasks.append(asyncio.create_task(s.open(stubborn(), name="stubborn")))

    report = await stopped_once(start, opening)
    go_on.set()
    await asyncio.wait(tasks, timeout=5)
    assert order[-1] == "closed pool"
    assert report.exit_code == 75
    assert [(a.worker, a.what) for a in report.abandoned] == [("stubborn", "start that did not end")]
    (hang,) = report.hung
    assert (hang.what, hang.name) == ("opening", "stubborn")
    assert "in stubborn" in hang.where


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def observe(self, event: Event) -> None:
        self.events.append(event)


async def test_of_two_stops_the_smaller_limit_holds() -> None:
    told = Told()
    seen: list[float] = []
    working = asyncio.Event()

    async def works(stop: Stop) -> None:
        working.set()
        await stop.wait()
        seen.append(stop.remaining())
        try:
            await asyncio.sleep(3600)
        finally:
            seen.append(stop.remaining())

    @service("twice", budget=CALM, observers=[told])
    async def twice(s: Service) -> None:
        s.loop(works)

    async with running(twice) as live:
        await working.wait()
        first = asyncio.create_task(live.stop("one"))
        while not seen:
            await asyncio.sleep(0)
        more = asyncio.create_task(live.stop("one more", within=60))
        report = await live.stop("two", within=3)
        assert await first is await more is report
    assert seen[0] > 7
    assert seen[1] == 0, "the token knows of the new limit"
    assert report.seconds < 3
    assert report.available < 3
    assert report.scale == pytest.approx(0.1)
    assert [event.reason for event in told.events if isinstance(event, StopHastened)] == ["two"]
    assert report.reason == "one"


async def test_a_stop_with_a_limit_reaches_the_closers_too() -> None:
    closing = asyncio.Event()

    class Slow:
        name = "slow"
        part = Part.POOLS

        async def open(self) -> None:
            return None

        async def close(self, deadline: Deadline) -> Closed:
            closing.set()
            await asyncio.sleep(3600)
            return Closed()

    @service("slow", budget=CALM)
    async def start(s: Service) -> None:
        await s.open(Slow())

    async with running(start) as live:
        ending = asyncio.create_task(live.stop("one"))
        await closing.wait()
        report = await live.stop("two", within=1.5)
        assert await ending is report
    assert [resource.outcome for resource in report.resources] == ["overran"]
    assert report.seconds < 3, "it had five seconds"


async def test_a_quick_closer_ends_clean_where_the_budget_has_nothing_for_pools() -> None:
    order: list[str] = []
    nothing_for_pools = Budget(grace_period=5, prestop=0, http=1, workers=1, producers=0, pools=0, report=1, margin=1)

    @service("no-pools", budget=nothing_for_pools)
    async def start(s: Service) -> None:
        await s.open(thing(order, "pool"), name="pool")

    async with running(start) as live:
        report = await live.stop()
    assert (report.exit_code, [resource.outcome for resource in report.resources]) == (0, ["clean"])


async def test_a_closer_that_blocks_the_loop_leaves_the_next_one_a_moment() -> None:
    order: list[str] = []

    class Blocks:
        name = "blocks"
        part = Part.POOLS

        async def open(self) -> None:
            return None

        async def close(self, deadline: Deadline) -> Closed:
            time.sleep(deadline.remaining(asyncio.get_running_loop().time()) + 0.4)
            return Closed()

    class Quick(Blocks):
        name = "quick"

        async def close(self, deadline: Deadline) -> Closed:
            await asyncio.sleep(0.01)
            order.append("closed quick")
            return Closed()

    @service("blocks", budget=QUICK)
    async def start(s: Service) -> None:
        await s.open(Quick())
        await s.open(Blocks())

    async with running(start) as live:
        report = await live.stop()
    assert order == ["closed quick"]
    assert [resource.outcome for resource in report.resources][1] == "clean"


@pytest.mark.parametrize("settings", [{"port": "8080"}, {"port": True}, {"port": -1}, {"host": None}, {"nosuch": 1}])
async def test_settings_of_http_that_cannot_be_kept_are_refused_in_the_start_up_function(
    settings: dict[str, Any],
) -> None:
    @service("bad", budget=QUICK)
    async def bad(s: Service) -> None:
        s.http(nothing, **{"host": "127.0.0.1", "port": 0, **settings})

    with pytest.raises(SettingsError, match=r"s\.http"):
        async with running(bad):
            raise AssertionError("it must not start")
