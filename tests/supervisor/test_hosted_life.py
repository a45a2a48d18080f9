"""A service on somebody else's loop: however that loop ends, and however often its host is cancelled, in order."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from quiesce import Budget, Service, Stop, critical, running, service
from quiesce.lifecycle.events import AbortRequested, Event, ReadinessChanged, StopRequested

BUDGET = Budget(grace_period=20, prestop=0, http=4, workers=4, producers=4, pools=4, report=2, margin=1)

Told = list[str]


@contextlib.asynccontextmanager
async def thing(name: str, told: Told) -> AsyncIterator[str]:
    # Without `finally`, as most are written: torn, it would never be closed.
    yield name
    await asyncio.sleep(0.02)
    told.append(f"closed {name}")


class Tells:
    def __init__(self, told: Told) -> None:
        self._told = told

    def observe(self, event: Event) -> None:
        match event:
            case ReadinessChanged(ready=False):
                self._told.append("not ready")
            case StopRequested():
                self._told.append("told to stop")
            case AbortRequested():
                self._told.append("aborted")


async def takes(told: Told, name: str, seconds: float = 0.4) -> None:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        told.append(f"{name} torn")
        raise
    told.append(name)


async def by_itself(told: Told) -> None:
    await takes(told, "step")
    told.append("COMMIT")


async def by_itself_for_long(told: Told) -> None:
    await takes(told, "step", 3600)


async def by_a_group(told: Told, seconds: float = 0.4) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(takes(told, "step", seconds))
        group.create_task(takes(told, "step", seconds))
    told.append("COMMIT")


async def in_a_section(told: Told) -> None:
    await critical("pay", by_a_group, told)


def made(told: Told, iteration: Callable[[Told], Awaitable[None]]) -> tuple[Any, asyncio.Event]:
    begun = asyncio.Event()

    async def work(stop: Stop) -> None:
        async for _ in stop.every(0.01):
            begun.set()
            await iteration(told)
        told.append("worker over")

    @service("orders", budget=BUDGET, observers=[Tells(told)])
    async def orders(s: Service) -> None:
        await s.open(thing("pool", told), name="pool")
        await s.open(thing("cache", told), name="cache")
        s.loop(work)

    return orders, begun


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(5):
        await event.wait()


iterations = pytest.mark.parametrize("iteration", [by_itself, by_a_group, in_a_section])


def whole(told: Told, iteration: Callable[[Told], Awaitable[None]]) -> Told:
    steps = ["step"] if iteration is by_itself else ["step", "step"]
    return ["not ready", "told to stop", *steps, "COMMIT", "worker over", "closed cache", "closed pool"]


@iterations
def test_a_loop_that_ends_around_a_service_waits_for_its_iteration_and_for_its_closers(
    iteration: Callable[[Told], Awaitable[None]],
) -> None:
    told: Told = []
    left: list[object] = []

    async def main() -> None:
        orders, begun = made(told, iteration)
        entered = running(orders)
        await entered.__aenter__()
        left.append(entered)
        await until(begun)
        # Never left: `asyncio.run` cancels all there is.

    asyncio.run(main())
    assert told == whole(told, iteration)


@iterations
def test_an_error_that_ends_the_loop_in_the_middle_does_not_tear_it_either(
    iteration: Callable[[Told], Awaitable[None]],
) -> None:
    told: Told = []

    async def main() -> None:
        orders, begun = made(told, iteration)

        async def host() -> None:
            async with running(orders):
                await asyncio.sleep(3600)

        task = asyncio.create_task(host())
        await until(begun)
        # As a Ctrl-C in a program of old: out of the loop at once, whatever runs on it.
        asyncio.get_running_loop().call_soon(interrupts)
        await task

    def interrupts() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert told == whole(told, iteration)


@iterations
def test_a_host_that_is_cancelled_once_drains(iteration: Callable[[Told], Awaitable[None]]) -> None:
    told: Told = []

    async def main() -> None:
        orders, begun = made(told, iteration)

        async def host() -> None:
            async with running(orders):
                await asyncio.sleep(3600)

        task = asyncio.create_task(host())
        await until(begun)
        task.cancel()
        await asyncio.wait({task}, timeout=10)
        assert task.cancelled()
        told.append("host gone")

    asyncio.run(main())
    assert told == [*whole(told, iteration), "host gone"]


@pytest.mark.parametrize("cancels", [2, 4])
def test_a_host_that_is_cancelled_twice_aborts_and_still_closes_in_order(cancels: int) -> None:
    told: Told = []

    async def main() -> None:
        orders, begun = made(told, by_itself_for_long)

        async def host() -> None:
            async with running(orders):
                await asyncio.sleep(3600)

        task = asyncio.create_task(host())
        await until(begun)
        for _ in range(cancels):
            task.cancel()
            # A few turns, so that it is delivered and not one with the next.
            for _ in range(3):
                await asyncio.sleep(0)
        await asyncio.wait({task}, timeout=10)
        assert task.cancelled()
        told.append("host gone")

    asyncio.run(main())
    assert told == [
        "not ready",
        "told to stop",
        "aborted",
        "step torn",
        "closed cache",
        "closed pool",
        "host gone",
    ]


def test_a_host_that_is_cancelled_twice_does_not_tear_a_section_that_ends_in_time() -> None:
    told: Told = []

    async def main() -> None:
        go = asyncio.Event()

        async def pay(told: Told) -> None:
            await until(go)
            await by_a_group(told, 0.05)

        async def waits_in_a_section(told: Told) -> None:
            await critical("pay", pay, told)

        orders, begun = made(told, waits_in_a_section)

        async def host() -> None:
            async with running(orders):
                await asyncio.sleep(3600)

        task = asyncio.create_task(host())
        await until(begun)
        for _ in range(3):
            task.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
        assert told[-1] == "aborted"
        go.set()
        await asyncio.wait({task}, timeout=10)
        told.append("host gone")

    asyncio.run(main())
    assert told == [
        "not ready",
        "told to stop",
        "aborted",
        "step",
        "step",
        "COMMIT",
        "closed cache",
        "closed pool",
        "host gone",
    ]


def test_one_cancel_while_it_is_left_waits_and_is_delivered_at_the_end() -> None:
    told: Told = []

    async def main() -> None:
        orders, begun = made(told, by_itself)

        async def host() -> None:
            async with asyncio.timeout(0.05) as limit:
                async with running(orders):
                    await until(begun)
                    limit.reschedule(asyncio.get_running_loop().time() + 0.05)
                told.append("not reached")

        with pytest.raises(TimeoutError):
            await host()

    asyncio.run(main())
    assert told == whole(told, by_itself)


def test_a_host_that_is_cancelled_while_the_service_starts() -> None:
    told: Told = []

    async def main() -> None:
        opening = asyncio.Event()

        @service("orders", budget=BUDGET, observers=[Tells(told)])
        async def orders(s: Service) -> None:
            await s.open(thing("pool", told), name="pool")
            opening.set()
            await asyncio.sleep(3600)

        async def host() -> None:
            async with running(orders):
                told.append("not reached")

        task = asyncio.create_task(host())
        await until(opening)
        task.cancel()
        await asyncio.wait({task}, timeout=10)
        assert task.cancelled()
        told.append("host gone")

    asyncio.run(main())
    assert told == ["not ready", "told to stop", "closed pool", "host gone"]


def test_what_the_service_leaves_running_ends_with_the_loop() -> None:
    told: Told = []
    left: list[object] = []

    async def main() -> None:
        begun = asyncio.Event()

        async def work(stop: Stop) -> None:
            left.append(asyncio.create_task(takes(told, "stray", 3600)))
            begun.set()
            await stop.wait()

        @service("orders", budget=BUDGET)
        async def orders(s: Service) -> None:
            await s.open(thing("pool", told), name="pool")
            s.loop(work)

        entered = running(orders)
        await entered.__aenter__()
        left.append(entered)
        await until(begun)

    asyncio.run(main())
    # Not before: a pool's own task, made in its start, would be one of these.
    assert told == ["closed pool", "stray torn"]


async def test_when_it_is_over_what_it_left_belongs_to_its_host() -> None:
    told: Told = []
    left: list[asyncio.Task[None]] = []
    begun = asyncio.Event()

    async def work(stop: Stop) -> None:
        left.append(asyncio.create_task(takes(told, "stray", 3600)))
        begun.set()
        await stop.wait()

    @service("orders", budget=BUDGET)
    async def orders(s: Service) -> None:
        s.loop(work)

    async with running(orders):
        await until(begun)
        assert not set(left) & asyncio.all_tasks()
    assert set(left) <= asyncio.all_tasks()
    left[0].cancel()
    await asyncio.wait(left, timeout=5)
    assert asyncio.all_tasks() == {asyncio.current_task()}
