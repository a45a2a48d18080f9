"""What `s.open` takes, and that every closer is called, bounded and told of, whatever the one before did."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from quiesce import Budget, Part, Service, Stop, running, service
from quiesce.errors import QuiesceError
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Closed
from quiesce.lifecycle.report import ResourceReport, ShutdownReport
from quiesce.supervisor.resources import as_resource, close_bounded

QUICK = Budget(grace_period=8, prestop=0, http=0, workers=1, producers=1, pools=1.5, report=1, margin=1)


async def stopped(*things: tuple[Any, dict[str, Any]]) -> ShutdownReport:
    """Opens the things in a service, stops it, and returns its report."""

    @service("closing", budget=QUICK)
    async def closing(s: Service) -> None:
        for thing, options in things:
            await s.open(thing, **options)

    async with running(closing) as live:
        return await live.stop()


def outcomes(report: ShutdownReport) -> dict[str, str]:
    return {resource.resource: resource.outcome for resource in report.resources}


def of(report: ShutdownReport, name: str) -> ResourceReport:
    return next(resource for resource in report.resources if resource.resource == name)


class Blocking:
    """Closed by a call that blocks until it is let go."""

    def __init__(self, hold: bool = False) -> None:
        self.let_go = threading.Event()
        self.closed_in: str | None = None
        if not hold:
            self.let_go.set()

    def close(self) -> None:
        assert self.let_go.wait(30)
        self.closed_in = threading.current_thread().name


async def test_a_thing_with_a_blocking_close_is_closed_in_a_daemon_thread() -> None:
    thing = Blocking()
    report = await stopped((thing, {"name": "thing"}))
    assert outcomes(report) == {"thing": "clean"}
    assert thing.closed_in == "quiesce closing thing"
    assert report.exit_code == 0


@pytest.mark.parametrize("method", ["aclose", "close", "dispose"])
@pytest.mark.parametrize("is_async", [True, False], ids=["coroutine", "plain"])
async def test_each_closing_method_is_found(method: str, is_async: bool) -> None:
    closed = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def coroutine(_: object) -> None:
        closed.set()

    def plain(_: object) -> None:
        loop.call_soon_threadsafe(closed.set)

    thing = type("Thing", (), {method: coroutine if is_async else plain})()
    assert outcomes(await stopped((thing, {}))) == {"Thing": "clean"}
    async with asyncio.timeout(1):
        await closed.wait()


async def test_a_close_that_returns_something_to_await_is_awaited() -> None:
    closed = asyncio.Event()

    async def later() -> None:
        closed.set()

    thing = type("Thing", (), {"close": lambda _: later()})()
    assert outcomes(await stopped((thing, {}))) == {"Thing": "clean"}
    assert closed.is_set()


async def test_a_blocking_context_manager_is_entered_and_left_by_one_thread() -> None:
    threads: list[int] = []

    @contextlib.contextmanager
    def manager() -> Iterator[str]:
        threads.append(threading.get_ident())
        yield "value"
        threads.append(threading.get_ident())

    seen: list[str] = []

    @service("one", budget=QUICK)
    async def one(s: Service) -> None:
        seen.append(await s.open(manager()))

    async with running(one) as live:
        report = await live.stop()
    assert seen == ["value"]
    assert outcomes(report) == {"manager": "clean"}
    assert len(set(threads)) == 1
    assert len(threads) == 2
    assert threads[0] != threading.get_ident()


async def test_the_loop_goes_on_while_a_closer_blocks_and_its_stack_stands_in_the_report() -> None:
    thing = Blocking(hold=True)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    counting = asyncio.ensure_future(count())
    report = await stopped((thing, {"name": "stuck"}))
    counting.cancel()
    thing.let_go.set()
    told = of(report, "stuck")
    assert told.outcome == "overran"
    assert told.ended_at is None
    assert "test_resources.py" in told.detail
    assert "in close" in told.detail
    assert report.exit_code == 75
    assert turns > 20
    assert report.seconds < 2.5


async def test_a_blocking_exit_that_overruns_is_told_with_its_stack() -> None:
    let_go = threading.Event()

    @contextlib.contextmanager
    def manager() -> Iterator[None]:
        yield
        let_go.wait(30)

    report = await stopped((manager(), {"name": "stuck"}))
    let_go.set()
    assert outcomes(report) == {"stuck": "overran"}
    assert "in manager" in of(report, "stuck").detail


async def test_what_a_blocking_enter_raises_reaches_the_start_function() -> None:
    @contextlib.contextmanager
    def manager() -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            raise LookupError("nothing here")
        yield

    caught: list[str] = []

    @service("one", budget=QUICK)
    async def one(s: Service) -> None:
        try:
            await s.open(manager())
        except LookupError as error:
            caught.append(str(error))

    async with running(one) as live:
        report = await live.stop()
    assert caught == ["nothing here"]
    assert report.resources == []


async def test_a_start_interrupted_in_a_blocking_enter_still_leaves_it() -> None:
    entering, go_on, left = threading.Event(), threading.Event(), threading.Event()

    @contextlib.contextmanager
    def manager() -> Iterator[None]:
        entering.set()
        go_on.wait(30)
        yield
        left.set()

    resource = as_resource(manager(), None, None)
    opening = asyncio.ensure_future(resource.open())
    await asyncio.to_thread(entering.wait, 5)
    opening.cancel()
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    await asyncio.wait({opening}, timeout=3)
    assert opening.cancelled()
    assert left.is_set(), "it was left as soon as it had been entered"


class Raises:
    def __init__(self, name: str, error: BaseException, part: Part = Part.POOLS) -> None:
        self.name = name
        self.part = part
        self._error = error

    async def open(self) -> str:
        return self.name

    async def close(self, deadline: Deadline) -> Closed:
        raise self._error


class Sleeps:
    """Never closes. `stubborn`: not even when it is cancelled."""

    def __init__(self, name: str, stubborn: bool = False) -> None:
        self.name = name
        self.part = Part.POOLS
        self.stubborn = stubborn

    async def open(self) -> "Sleeps":
        return self

    async def close(self, deadline: Deadline) -> Closed:
        while True:
            try:
                await self.holds_on()
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise

    async def holds_on(self) -> None:
        await asyncio.sleep(3600)


@contextlib.asynccontextmanager
async def leaves_by(error: BaseException) -> AsyncIterator[None]:
    yield
    raise error


@contextlib.contextmanager
def blocks_and_leaves_by(error: BaseException) -> Iterator[None]:
    yield
    raise error


ERRORS = [ValueError("broken"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("mine"), GeneratorExit()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("how", ["adapter", "async context manager", "context manager", "close in a thread"])
async def test_S32_every_closer_is_called_whatever_the_one_before_raised(how: str, error: BaseException) -> None:
    def close(_: object) -> None:
        raise error

    made: dict[str, Callable[[], Any]] = {
        "adapter": lambda: Raises("bad", error),
        "async context manager": lambda: leaves_by(error),
        "context manager": lambda: blocks_and_leaves_by(error),
        "close in a thread": lambda: type("Bad", (), {"close": close})(),
    }
    bad = made[how]()
    first = Blocking()
    report = await stopped((first, {"name": "first"}), (bad, {} if how == "adapter" else {"name": "bad"}))
    assert outcomes(report) == {"bad": "failed", "first": "clean"}
    assert type(error).__name__ in of(report, "bad").detail
    assert any("closing bad" in line for line in report.errors)
    assert report.exit_code == 75
    assert report.seconds < 0.7, "nobody waited for one that was over"


@pytest.mark.parametrize("stubborn", [False, True], ids=["can be cancelled", "eats cancels"])
async def test_S32_one_that_overruns_leaves_the_others_their_share(stubborn: bool) -> None:
    first, last = Blocking(), Blocking()
    stuck = Sleeps("stuck", stubborn)
    report = await stopped((first, {"name": "first"}), (stuck, {}), (last, {"name": "last"}))
    stuck.stubborn = False
    assert outcomes(report) == {"last": "clean", "stuck": "overran", "first": "clean"}
    assert [resource.resource for resource in report.resources] == ["last", "stuck", "first"]
    assert "in holds_on" in of(report, "stuck").detail, "the innermost await is named"
    assert of(report, "first").began_at < 1.0, "half of what the part had left was kept for it"


async def test_S32_three_that_hang_each_have_their_share_and_the_report_comes_in_time() -> None:
    hanging = [Blocking(hold=True) for _ in range(3)]
    report = await stopped(*((one, {"name": f"h{number}"}) for number, one in enumerate(hanging)))
    for one in hanging:
        one.let_go.set()
    assert outcomes(report) == {"h2": "overran", "h1": "overran", "h0": "overran"}
    began = [resource.began_at for resource in report.resources]
    shares = [after - before for before, after in itertools.pairwise(began)]
    assert all(0.2 < share < 0.6 for share in shares), shares
    assert report.seconds < 2.0


@pytest.mark.parametrize("seconds", [0.0, 0.001])
async def test_S32_every_closer_is_called_where_no_time_is_left_at_all(seconds: float) -> None:
    called: list[str] = []

    class Adapter:
        name = "adapter"
        part = Part.PRODUCERS

        async def open(self) -> None: ...

        async def close(self, deadline: Deadline) -> Closed:
            called.append(self.name)
            await asyncio.sleep(0)
            return Closed()

    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        yield
        called.append("manager")

    class Thing:
        async def aclose(self) -> None:
            called.append("thing")

    @service("no-time", budget=QUICK)
    async def no_time(s: Service) -> None:
        await s.open(Thing(), name="thing")
        await s.open(manager())
        await s.open(Adapter())
        s.loop(waits_for_stop)

    async with running(no_time) as live:
        report = await live.stop(within=seconds)
    # In their order, all in one breath: the exit of a context manager begins a turn of the loop behind its call.
    assert [resource.resource for resource in report.resources] == ["adapter", "manager", "thing"]
    assert sorted(called) == ["adapter", "manager", "thing"]
    assert report.seconds < 1.0


async def waits_for_stop(stop: Stop) -> None:
    await stop.wait()


async def test_an_exit_that_is_cancelled_at_its_deadline_counts_as_forced() -> None:
    unwound = asyncio.Event()

    @contextlib.asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        yield
        try:
            await asyncio.sleep(3600)
        finally:
            unwound.set()

    report = await stopped((slow(), {}))
    assert outcomes(report) == {"slow": "forced"}
    assert "in slow" in of(report, "slow").detail
    assert unwound.is_set()


async def test_a_resource_that_forces_at_its_deadline_is_still_in_time_and_names_the_holder() -> None:
    class Forces:
        name = "pool"
        part = Part.POOLS

        async def open(self) -> None: ...

        async def close(self, deadline: Deadline) -> Closed:
            await asyncio.sleep(deadline.remaining(time.monotonic()))
            return Closed(forced=True, detail="held by somebody")

    report = await stopped((Forces(), {}))
    assert outcomes(report) == {"pool": "forced"}
    assert of(report, "pool").detail == "held by somebody"


async def test_a_deadline_that_has_passed_still_lets_a_quick_one_close() -> None:
    class Quick:
        name = "pool"
        part = Part.POOLS

        async def open(self) -> None: ...

        async def close(self, deadline: Deadline) -> Closed:
            return Closed()

    assert (await close_bounded(Quick(), Deadline(time.monotonic() - 1)))[0] == "clean"


async def test_a_cancelled_close_takes_its_closer_along() -> None:
    stuck = Sleeps("stuck")
    closing = asyncio.ensure_future(close_bounded(stuck, Deadline(time.monotonic() + 60)))
    await asyncio.wait({closing}, timeout=0.05)
    closing.cancel()
    await asyncio.wait({closing}, timeout=1)
    assert closing.cancelled()
    await asyncio.sleep(0)
    assert not any(task.get_name() == "closing stuck" for task in asyncio.all_tasks())


def test_what_cannot_be_opened_is_told() -> None:
    with pytest.raises(QuiesceError, match="it takes an adapter"):
        as_resource(object(), None, None)


@pytest.mark.parametrize("turns", range(8))
async def test_a_start_interrupted_at_any_turn_of_an_opening_leaves_nothing_open(turns: int) -> None:
    said: list[str] = []

    @contextlib.asynccontextmanager
    async def plain() -> AsyncIterator[None]:
        # Without `finally`: what has been opened is left in order, and not by an error.
        await asyncio.sleep(0)
        said.append("opened")
        yield
        said.append("closed")

    opening: asyncio.Task[None] = asyncio.create_task(as_resource(plain(), "plain", Part.POOLS).open())
    for _ in range(turns):
        await asyncio.sleep(0)
    was_over = opening.done()
    opening.cancel()
    await asyncio.wait({opening}, timeout=3)
    assert said == (["opened"] if was_over else ["opened", "closed"] if "opened" in said else [])
    if not was_over:
        assert opening.cancelled()
