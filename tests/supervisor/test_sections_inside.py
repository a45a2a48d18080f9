"""What is made inside a critical section is as safe as itself, and whose section a thread's is."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from quiesce import Budget, Service, Stop, critical, critical_in_thread, remaining, running, service
from quiesce.testing import virtual_time

BUDGET = Budget(grace_period=9, prestop=0, http=2, workers=3, producers=1, pools=1, report=0.5, margin=0.5)


async def by_group(step: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(step())  # type: ignore[arg-type]
        group.create_task(step())  # type: ignore[arg-type]


async def by_gather(step: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(step(), step())


async def by_tasks_of_tasks(step: Callable[[], Awaitable[None]]) -> None:
    async def deeper() -> None:
        await by_group(step)

    await asyncio.create_task(deeper())


async def by_a_nested_section(step: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(critical("nested", by_gather, step))


ways = pytest.mark.parametrize("way", [by_group, by_gather, by_tasks_of_tasks, by_a_nested_section])


@ways
def test_the_end_of_asyncio_run_tears_no_task_that_a_section_has_made(way: Callable[..., Awaitable[None]]) -> None:
    said: list[str] = []
    left: list[asyncio.Task[None]] = []

    async def leaves_at_once() -> None:
        begun = asyncio.Event()

        async def step() -> None:
            begun.set()
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                said.append("torn")
                raise
            said.append("step")

        async def pay() -> None:
            await way(step)
            said.append("COMMIT")

        left.append(asyncio.create_task(critical("pay", pay)))
        async with asyncio.timeout(5):
            await begun.wait()

    asyncio.run(leaves_at_once())
    assert said == ["step", "step", "COMMIT"]
    assert left[0].cancelled()


def test_what_a_section_leaves_running_is_the_loops_again() -> None:
    said: list[str] = []

    async def main() -> None:
        left: list[asyncio.Task[Any]] = []

        async def lasts(name: str) -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                said.append(name)

        async def inner() -> None:
            left.append(asyncio.create_task(lasts("of the inner")))

        async def outer() -> None:
            await critical("inner", inner)
            left.append(asyncio.create_task(lasts("of the outer")))
            assert not asyncio.all_tasks() & set(left)
            await asyncio.sleep(0)

        await critical("outer", outer)
        assert set(left) <= asyncio.all_tasks()

    asyncio.run(main())
    assert sorted(said) == ["of the inner", "of the outer"]


def test_what_an_inner_section_leaves_running_belongs_to_the_outer_one_with_all_that_it_makes() -> None:
    said: list[str] = []
    left: list[asyncio.Task[Any]] = []
    callers: list[asyncio.Task[None]] = []

    async def main() -> None:
        begun = asyncio.Event()

        async def step() -> None:
            begun.set()
            await asyncio.sleep(0.05)
            said.append("step")

        async def lasts(inner_over: asyncio.Event) -> None:
            await inner_over.wait()
            await by_gather(step)

        async def inner(inner_over: asyncio.Event) -> None:
            left.append(asyncio.create_task(lasts(inner_over)))

        async def outer() -> None:
            inner_over = asyncio.Event()
            await critical("inner", inner, inner_over)
            inner_over.set()
            await left[0]
            said.append("COMMIT")

        callers.append(asyncio.create_task(critical("outer", outer)))
        async with asyncio.timeout(5):
            await begun.wait()

    asyncio.run(main())
    assert said == ["step", "step", "COMMIT"]


@pytest.mark.parametrize("old_form", [True, False])
def test_a_task_factory_of_somebody_else_goes_on_being_asked(old_form: bool) -> None:
    asked: list[str] = []

    def older(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
        asked.append(work.__name__)
        return asyncio.Task(work, loop=loop)

    def newer(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> Any:
        asked.append(work.__name__)
        return asyncio.Task(work, loop=loop, **more)

    async def step() -> None:
        await asyncio.sleep(0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(older if old_form else newer)
        await critical("pay", by_gather, step)
        assert asked.count("step") == 2
        # Put over ours by somebody who does not know it.
        loop.set_task_factory(newer)
        await critical("pay", by_gather, step)
        assert asked.count("step") == 4

    asyncio.run(main())


def failing_services() -> tuple[list[str], Callable[[bool], Any]]:
    order: list[str] = []

    def make(late: bool) -> Any:
        @contextlib.asynccontextmanager
        async def pool() -> AsyncIterator[None]:
            yield
            order.append("closed pool")

        async def pay() -> None:
            await asyncio.sleep(0.5)
            order.append("failed")
            raise ZeroDivisionError("half paid")

        async def work(stop: Stop) -> None:
            if late:
                await critical("pay", pay)
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await critical("pay", pay)
            await stop.wait()

        @service("orders", budget=BUDGET)
        async def orders(s: Service) -> None:
            await s.open(pool(), name="pool")
            s.loop(work, on_drain="cancel")

        return orders

    return order, make


def test_a_section_that_fails_in_the_drain_with_nobody_left_to_raise_to_fails_the_service() -> None:
    order, make = failing_services()

    async def main() -> None:
        async with running(make(True)) as s:
            await asyncio.sleep(0.1)
            # The worker is cancelled at once, and its section is not.
            report = await s.stop()
        assert order == ["failed", "closed pool"]
        assert report.errors == ["critical section pay: ZeroDivisionError: half paid"]
        assert report.exit_code == 1

    virtual_time.run(main())


def test_one_that_fails_behind_a_timeout_before_any_stop_is_the_affair_of_its_caller() -> None:
    order, make = failing_services()

    async def main() -> None:
        async with running(make(False)) as s:
            await asyncio.sleep(1)
            assert order == ["failed"]
            assert s.ready
            report = await s.stop()
        assert report.errors == []
        assert report.exit_code == 0

    virtual_time.run(main())


async def test_one_that_was_aborted_is_abandoned_and_not_failed() -> None:
    async def pay() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise ZeroDivisionError("torn") from None

    async def work(stop: Stop) -> None:
        await critical("pay", pay)

    @service(
        "orders", budget=Budget(grace_period=4, prestop=0, http=0.5, workers=0.5, producers=0.5, pools=0.5, report=0.3)
    )
    async def orders(s: Service) -> None:
        s.loop(work, on_drain="cancel")

    async with running(orders) as s:
        report = await s.stop()
    assert ("pay", "critical section") in [(a.worker, a.what) for a in report.abandoned]
    assert report.errors == []
    assert report.exit_code == 75


class Threads:
    """Three ways to begin a thread; only the first hands the context on."""

    @staticmethod
    async def to_thread(job: Callable[[], None]) -> None:
        await asyncio.to_thread(job)

    @staticmethod
    async def executor(job: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(None, job)

    @staticmethod
    async def plain(job: Callable[[], None]) -> None:
        thread = threading.Thread(target=job)
        thread.start()
        try:
            while thread.is_alive():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            raise


@pytest.mark.parametrize("way", ["to_thread", "executor", "plain"])
async def test_a_section_in_any_thread_of_the_process_holds_back_the_closers(way: str) -> None:
    order: list[str] = []
    began, go_on, over = threading.Event(), threading.Event(), threading.Event()
    left: list[float] = []

    @contextlib.asynccontextmanager
    async def pool() -> AsyncIterator[None]:
        yield
        order.append("closed pool")

    def charge() -> None:
        with critical_in_thread("charge"):
            began.set()
            go_on.wait(10)
            left.append(remaining())
            order.append("charged")
        over.set()

    async def work(stop: Stop) -> None:
        await getattr(Threads, way)(charge)

    @service("orders", budget=BUDGET)
    async def orders(s: Service) -> None:
        await s.open(pool(), name="pool")
        # The coroutine is torn at once, the thread is not.
        s.loop(work, on_drain="cancel")

    async with running(orders) as s:
        await asyncio.to_thread(began.wait, 10)
        asyncio.get_running_loop().call_later(0.2, go_on.set)
        report = await s.stop()
    assert await asyncio.to_thread(over.wait, 10)
    assert order == ["charged", "closed pool"]
    assert left[0] < BUDGET.available
    assert report.exit_code == 0


async def test_with_two_services_a_thread_must_say_which_one_it_works_for() -> None:
    @service("one", budget=BUDGET)
    async def one(s: Service) -> None:
        return None

    def charge() -> str:
        try:
            with critical_in_thread("charge"):
                return "protected"
        except RuntimeError as error:
            return str(error)

    loop = asyncio.get_running_loop()
    async with running(one):
        assert await loop.run_in_executor(None, charge) == "protected"
        async with running(one):
            assert "2 services run in this process" in await loop.run_in_executor(None, charge)
    # And with none it is nobody's, as in a script or a test of the function.
    assert await loop.run_in_executor(None, charge) == "protected"


@pytest.mark.parametrize("blocking", [True, False])
async def test_what_a_closer_does_in_its_thread_waits_for_nobody(blocking: bool) -> None:
    said: list[str] = []

    def last_words() -> None:
        with critical_in_thread("last words"):
            said.append("said")

    class Client:
        def close(self) -> None:
            last_words()

    @contextlib.contextmanager
    def client() -> Any:
        yield
        last_words()

    @service("orders", budget=BUDGET)
    async def orders(s: Service) -> None:
        if blocking:
            await s.open(client(), name="client")
        else:
            await s.open(Client(), name="client")

    async with running(orders) as s:
        report = await s.stop()
    assert said == ["said"]
    assert [r.outcome for r in report.resources] == ["clean"]
