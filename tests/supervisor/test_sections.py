"""Critical sections: whoever is cancelled, however and whenever, the stretch reaches its end."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from math import inf
from typing import Any

import asyncpg
import pytest

from quiesce import Budget, Service, Stop, critical, critical_in_thread, remaining, running, service
from quiesce.errors import IntakeClosed
from quiesce.supervisor.critical import enter
from quiesce.supervisor.sections import Sections
from quiesce.testing import virtual_time

SMALL = Budget(grace_period=4, prestop=0, http=0.5, workers=0.5, producers=0.3, pools=0.3, report=0.2, margin=0.2)


class CountedAwaits:
    """Awaits a coroutine, and calls `at_each(n)` when it waits for the n-th time (1 is the first)."""

    def __init__(self, coroutine: Coroutine[Any, Any, object], at_each: Callable[[int], object]) -> None:
        self._coroutine = coroutine
        self._at_each = at_each
        self.count = 0

    def __await__(self) -> Generator[Any, None, object]:
        inner = self._coroutine.__await__()
        error: BaseException | None = None
        while True:
            try:
                waited = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as end:
                return end.value
            self.count += 1
            self._at_each(self.count)
            error = None
            try:
                yield waited
            except BaseException as raised:  # noqa: BLE001 - handed on to the coroutine
                error = raised


async def commits(database: str, table: str, number: int) -> None:
    """A whole transaction on a connection of its own, its COMMIT included."""
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            await connection.execute(f"insert into {table} values ($1)", number)
    finally:
        await connection.close()


async def rows(database: str, table: str) -> list[int]:
    connection = await asyncpg.connect(database)
    try:
        return [row["n"] for row in await connection.fetch(f"select n from {table} order by n")]
    finally:
        await connection.close()


async def make_table(database: str) -> str:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute("create table charged (n int primary key)")
    finally:
        await connection.close()
    return "charged"


async def test_s7_a_cancel_at_every_await_of_a_section_never_tears_its_commit(database: str) -> None:
    table = await make_table(database)
    step = 0
    while True:
        step += 1
        reached = False

        async def charge(step: int, caller: "asyncio.Future[asyncio.Task[None]]") -> None:
            def cancel(n: int) -> None:
                nonlocal reached
                if n == step:
                    reached = True
                    caller.result().cancel("now")

            await CountedAwaits(commits(database, table, step), cancel)

        known: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()
        caller = asyncio.create_task(critical("charge", charge, step, known))
        known.set_result(caller)
        await asyncio.wait({caller}, timeout=10)
        if not reached:
            assert caller.done()
            assert not caller.cancelled()
            break
        assert caller.cancelled()
        # By the time that the caller is gone the row is there: nobody needs to wait for it.
        assert await rows(database, table) == list(range(1, step + 1))
    assert step > 8, "connecting, BEGIN, INSERT, COMMIT and closing wait more than a few times"


async def test_a_timeout_and_a_failing_group_around_it_do_not_tear_a_commit(database: str) -> None:
    table = await make_table(database)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await critical("charge", commits, database, table, 1)
    assert await rows(database, table) == [1]

    async def fails() -> None:
        raise ZeroDivisionError

    async def group_of_two() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(critical("charge", commits, database, table, 2))
            # It begins after the section did.
            asyncio.get_running_loop().call_soon(lambda: group.create_task(fails()))

    with pytest.raises(ExceptionGroup):
        await group_of_two()
    assert await rows(database, table) == [1, 2]


def test_the_end_of_asyncio_run_does_not_tear_a_commit(database: str) -> None:
    async def prepare() -> str:
        return await make_table(database)

    table = asyncio.run(prepare())
    left: list[asyncio.Task[None]] = []

    async def leaves_at_once() -> None:
        begun = asyncio.Event()

        async def charge() -> None:
            begun.set()
            await commits(database, table, 1)

        left.append(asyncio.create_task(critical("charge", charge)))
        async with asyncio.timeout(5):
            await begun.wait()
        # `asyncio.run` now cancels all tasks of the loop, and the section's own is not to be among them.

    asyncio.run(leaves_at_once())
    assert left[0].cancelled()
    assert asyncio.run(rows(database, table)) == [1]


def swept(scenario: Callable[[virtual_time.VirtualLoop], Awaitable[None]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_time.VirtualLoop)
        await scenario(loop)

    virtual_time.run(main())


@pytest.mark.parametrize("cancels", [1, 3])
def test_repeated_cancels_at_every_turn_of_the_loop(cancels: int) -> None:
    async def scenario(loop: virtual_time.VirtualLoop) -> None:
        for turn in range(1, 30):
            done: list[str] = []

            async def stretch(done: list[str] = done) -> None:
                for _ in range(5):
                    await asyncio.sleep(0)
                await asyncio.sleep(1)
                done.append("whole")

            caller = asyncio.create_task(critical("stretch", stretch))
            for extra in range(cancels):
                loop.at_turn(loop.turns + turn + extra, partial(caller.cancel, f"cancel {extra}"))
            await asyncio.wait({caller}, timeout=10)
            # Torn it never is; before its first step a cancel keeps it from beginning.
            assert done == ["whole"] or (turn == 1 and not done)
            if caller.cancelled():
                with pytest.raises(asyncio.CancelledError, match="cancel 0"):
                    caller.result()
            await asyncio.sleep(1)  # the turns that are left over

    swept(scenario)


def test_sections_nest_and_timeouts_inside_work() -> None:
    async def scenario(loop: virtual_time.VirtualLoop) -> None:
        said: list[str] = []

        async def inner() -> str:
            await asyncio.sleep(2)
            said.append("inner")
            return "result"

        async def outer() -> str:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await asyncio.sleep(100)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(critical("inner", inner))
            said.append("outer")
            return task.result()

        caller = asyncio.create_task(critical("outer", outer))
        loop.call_later(0.5, caller.cancel)
        await asyncio.wait({caller}, timeout=10)
        assert said == ["inner", "outer"]
        assert caller.cancelled()
        assert await critical("again", outer) == "result"

    swept(scenario)


def test_what_a_section_raises_reaches_the_caller_and_is_logged_if_that_was_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(loop: virtual_time.VirtualLoop) -> None:
        async def fails() -> None:
            await asyncio.sleep(1)
            raise ZeroDivisionError("broken")

        with pytest.raises(ZeroDivisionError):
            await critical("fails", fails)
        assert not caplog.records
        caller = asyncio.create_task(critical("fails", fails))
        loop.call_later(0.5, caller.cancel)
        await asyncio.wait({caller})
        assert caller.cancelled()

    swept(scenario)
    assert [line.getMessage() for line in caplog.records] == [
        "critical section fails failed after its caller was cancelled"
    ]


def test_after_the_closing_began_only_what_is_inside_an_open_section_may_begin() -> None:
    async def scenario(loop: virtual_time.VirtualLoop) -> None:
        sections = Sections()
        enter(sections)
        said: list[str] = []
        late: list[asyncio.Task[None]] = []

        async def small() -> None:
            said.append("small")

        async def straggler() -> None:
            await asyncio.sleep(5)
            await critical("straggler", small)

        async def outer() -> None:
            late.append(asyncio.create_task(straggler()))
            await asyncio.sleep(1)
            await critical("nested", small)

        caller = asyncio.create_task(critical("outer", outer))
        await asyncio.sleep(0.5)
        assert [name for name, _ in sections.open_names()] == ["outer"]
        with sections.lock:
            sections.close()
        with pytest.raises(IntakeClosed, match="'late' came after"):
            await critical("late", small)
        await caller
        assert said == ["small"]
        # A task that was made inside a section is not part of it when that is over.
        with pytest.raises(IntakeClosed):
            await late[0]
        assert sections.count == 0

    swept(scenario)


async def test_outside_a_service_there_is_no_limit() -> None:
    assert remaining() == inf


async def test_a_section_knows_its_time_holds_back_the_closers_and_is_named_when_it_overruns() -> None:
    times: list[float] = []
    order: list[str] = []

    class Pool:
        async def __aenter__(self) -> None:
            return None

        async def __aexit__(self, *_: object) -> None:
            # What a resource does for itself while it closes does not wait for itself.
            await critical("last words", asyncio.sleep, 0)
            order.append("closed pool")

    async def charge() -> None:
        times.append(remaining())
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as cancelled:
            times.append(remaining())
            order.append(f"aborted: {cancelled}")
            raise

    async def work(stop: Stop) -> None:
        await stop.wait()
        await critical("charge", charge)

    @service("orders", budget=SMALL)
    async def orders(s: Service) -> None:
        await s.open(Pool(), name="pool")
        s.loop(work)

    async with running(orders) as s:
        report = await s.stop()
    assert times[0] == pytest.approx(SMALL.available - SMALL.reserved, abs=0.5)
    assert times[1] < 0.1
    assert order[0] == "aborted: the time for critical sections is over"
    assert order[1:] == ["closed pool"]
    assert ("charge", "critical section") in [(a.worker, a.what) for a in report.abandoned]
    assert report.exit_code == 75
    # The host's own sections are its own.
    assert remaining() == inf
    await critical("of the host", asyncio.sleep, 0)


async def test_a_section_of_a_thread_holds_back_the_closers_and_knows_its_time() -> None:
    order: list[str] = []
    began, go_on = threading.Event(), threading.Event()

    class Pool:
        async def __aenter__(self) -> None:
            return None

        async def __aexit__(self, *_: object) -> None:
            order.append("closed pool")

    def charge() -> None:
        with critical_in_thread("charge"), critical_in_thread("nested"):
            began.set()
            go_on.wait(5)
            assert remaining() < SMALL.available
            order.append("charged")

    async def work(stop: Stop) -> None:
        await asyncio.to_thread(charge)

    @service("orders", budget=SMALL)
    async def orders(s: Service) -> None:
        await s.open(Pool(), name="pool")
        # The coroutine is torn at once, the thread is not.
        s.loop(work, on_drain="cancel")

    async with running(orders) as s:
        await asyncio.to_thread(began.wait, 5)
        asyncio.get_running_loop().call_later(0.2, go_on.set)
        report = await s.stop()
    assert order == ["charged", "closed pool"]
    assert report.exit_code == 0


async def test_a_thread_that_comes_too_late_is_refused_and_a_coroutine_is_told_what_to_use() -> None:
    sections = Sections()
    with sections.hold("first"):
        with sections.lock:
            sections.close()
        with sections.hold("inside the first"):
            pass
    with pytest.raises(IntakeClosed, match="'late' came after"), sections.hold("late"):
        pass
    with pytest.raises(RuntimeError, match="await critical"), critical_in_thread("wrong"):
        pass


def test_threads_that_begin_sections_against_a_closing_are_counted_or_refused() -> None:
    """The count that the closing was decided on is never wrong: no section begins behind it."""
    for _ in range(50):
        sections = Sections()
        behind: list[bool] = []
        start = threading.Barrier(4)
        closed = threading.Event()

        def enters(
            sections: Sections = sections,
            start: threading.Barrier = start,
            closed: threading.Event = closed,
            behind: list[bool] = behind,
        ) -> None:
            start.wait(5)
            for _ in range(50):
                try:
                    with sections.hold("stretch"):
                        behind.append(closed.is_set())
                except IntakeClosed:
                    return

        threads = [threading.Thread(target=enters) for _ in range(3)]
        for thread in threads:
            thread.start()
        start.wait(5)
        while True:
            with sections.lock:
                if sections.count == 0:
                    sections.close()
                    closed.set()
                    break
        for thread in threads:
            thread.join(5)
        assert not any(behind)
