"""Periodic workers and loops: the grid, the exact tick, failures, and what a stop does."""

import asyncio
from functools import partial
from math import inf, nan

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiesce.errors import SettingsError
from quiesce.lifecycle.events import IterationEnded
from quiesce.lifecycle.grid import Grid
from quiesce.lifecycle.ports import Stop, Worker
from quiesce.testing import virtual_time
from quiesce.testing.manual_stop import ManualStop
from quiesce.workers import Loop, Periodic


class Job:
    """Notes when it began and takes as long as told, call by call."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)
        self.began: list[float] = []
        self.ended = 0

    async def __call__(self, *args: object) -> None:
        self.began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds.pop(0) if self.seconds else 0.0)
        self.ended += 1


async def run(worker: Worker, stop_at: float) -> ManualStop:
    stop = ManualStop(worker.name)
    stop.at(stop_at)
    await worker.run(stop)
    assert stop.in_hand() == []
    return stop


def test_it_runs_on_a_fixed_grid_from_start_to_start() -> None:
    async def main() -> None:
        job = Job(0.4, 0.9, 0.1)
        await run(Periodic(1.0, job), stop_at=5.5)
        assert job.began == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0])

    virtual_time.run(main())


def test_at_once_the_first_comes_at_the_start() -> None:
    async def main() -> None:
        job = Job()
        await run(Periodic(1.0, job, at_once=True), stop_at=2.5)
        assert job.began == pytest.approx([0.0, 1.0, 2.0])

    virtual_time.run(main())


def test_a_late_iteration_is_followed_by_no_burst() -> None:
    async def main() -> None:
        job = Job(2.5, 1.0)
        await run(Periodic(1.0, job), stop_at=7.5)
        # 1.0 lasts until 3.5: 2 and 3 are skipped. 4.0 lasts just until 5.0, which is not missed.
        assert job.began == pytest.approx([1.0, 4.0, 5.0, 6.0, 7.0])

    virtual_time.run(main())


@given(st.floats(0.001, 1e4), st.floats(0, 1e6), st.lists(st.floats(0, 10), max_size=30))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_grid_never_gives_two_starts_in_one_interval_and_never_drifts(
    seconds: float, origin: float, busy: list[float]
) -> None:
    grid, last, now = Grid(origin, seconds), 0, origin
    for factor in busy:
        index = grid.next_index(last, now)
        assert index > last
        instant = grid.instant(index)
        tolerance = seconds * 1e-6 + origin * 1e-12
        # Due now or later, and by less than an interval unless the one before it has just begun.
        assert instant >= now - tolerance
        assert index == last + 1 or instant - now <= seconds + tolerance
        now = max(now, instant) + factor * seconds
        last = index


def test_a_grid_point_that_rounding_has_put_behind_us_is_not_missed() -> None:
    # 0.1 * 3 is a little more than 0.3.
    assert Grid(0.0, 0.1).next_index(2, 0.1 * 3) == 3
    assert Grid(0.0, 0.1).next_index(2, 0.31) == 4


def test_jitter_delays_each_start_and_leaves_the_grid() -> None:
    async def main() -> None:
        job = Job()
        draws = iter([0.5, 0.0, 0.9, 0.25, 0.1, 0.1])
        await run(Periodic(10.0, job, jitter=4.0, draw=lambda: next(draws)), stop_at=45.0)
        assert job.began == pytest.approx([12.0, 20.0, 33.6, 41.0])

    virtual_time.run(main())


def test_no_iteration_begins_at_the_exact_tick_of_the_stop() -> None:
    async def main() -> None:
        job = Job()
        # Both timers are due in the same turn of the loop. The stop's may run first or second.
        await run(Periodic(1.0, job), stop_at=3.0)
        assert job.began == pytest.approx([1.0, 2.0])
        job = Job()
        worker, stop = Periodic(1.0, job), ManualStop("job")
        task = asyncio.create_task(worker.run(stop))
        await asyncio.sleep(1.5)
        stop.at(asyncio.get_running_loop().time() + 1.5)
        await task
        assert len(job.began) == 2

    virtual_time.run(main())


def test_no_iteration_begins_if_the_stop_comes_between_the_wake_and_the_beginning() -> None:
    async def main() -> None:
        job, stop = Job(), ManualStop("job")
        slept = stop.sleep

        async def sleeps_and_is_stopped(seconds: float) -> bool:
            whole = await slept(seconds)
            stop.now()
            return whole

        stop.sleep = sleeps_and_is_stopped  # type: ignore[method-assign]
        await Periodic(1.0, job).run(stop)
        assert not job.began

    virtual_time.run(main())


def test_a_stop_wakes_it_at_once_and_lets_the_iteration_in_hand_end() -> None:
    async def main() -> None:
        job = Job(3.0)
        await run(Periodic(10.0, job), stop_at=5.0)
        assert asyncio.get_running_loop().time() == pytest.approx(5.0)
        loop = asyncio.get_running_loop()
        job = Job(3.0)
        began = loop.time()
        await run(Periodic(10.0, job), stop_at=began + 11.0)
        assert loop.time() == pytest.approx(began + 13.0)
        assert job.ended == 1

    virtual_time.run(main())


def test_an_iteration_that_may_be_cancelled_is() -> None:
    async def main() -> None:
        job, stop = Job(30.0), ManualStop("cleaner")
        worker = Periodic(1.0, job, on_drain="cancel")
        assert worker.on_drain == "cancel"
        task = asyncio.create_task(worker.run(stop))
        await asyncio.sleep(1.5)
        stop.now()
        task.cancel("on_drain is cancel")
        await asyncio.wait({task}, timeout=0.1)
        assert task.cancelled()
        assert job.ended == 0
        assert [ended.failed for ended in stop.told(IterationEnded)] == [False]
        assert not stop.abandoned

    virtual_time.run(main())


def test_one_failure_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        calls = 0

        async def clean_up() -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                # Somebody else cancelled what it waits for: no abort, a failure.
                gone = asyncio.get_running_loop().create_future()
                gone.cancel()
                await gone
            if calls < 10:
                raise ConnectionError("database is away")

        stop = await run(Periodic(1.0, clean_up), stop_at=10.5)
        assert calls == 10
        assert [ended.failed for ended in stop.told(IterationEnded)] == [True] * 9 + [False]

    virtual_time.run(main())
    errors = [line for line in caplog.records if line.levelname == "ERROR"]
    assert len(errors) == 9
    assert all("clean_up" in line.getMessage() and line.exc_info for line in errors)


def test_arguments_and_names() -> None:
    async def expire(*words: str) -> None:
        assert words == ("a", "b")

    assert Periodic(1, expire, "a", "b").name == "expire"
    assert Periodic(1, partial(expire, "a"), "b").name == "expire"
    assert Periodic(1, Job()).name == "Job"
    assert Periodic(1, expire, name="cleaner").name == "cleaner"

    async def main() -> None:
        await run(Periodic(1, partial(expire, "a"), "b", bound=3, after="http"), stop_at=2.5)

    virtual_time.run(main())


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ({"seconds": 0}, "seconds: got 0, takes seconds, more than 0"),
        ({"seconds": inf}, "seconds: got inf"),
        ({"seconds": "60"}, "seconds: got '60'"),
        ({"seconds": 1, "jitter": 2.0}, "jitter: got 2, takes seconds, at most the interval 1"),
        ({"seconds": 1, "jitter": nan}, "jitter: got nan"),
        ({"seconds": 1, "bound": True}, "bound: got True"),
        ({"seconds": 1, "on_drain": "abort"}, "on_drain: got 'abort'"),
        ({"seconds": 1, "after": "workers"}, "after: got 'workers'"),
    ],
)
def test_wrong_terms_are_refused_by_name(terms: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        Periodic(fn=Job(), name="job", **terms)  # type: ignore[arg-type]


def test_a_loop_iterates_by_itself_until_the_stop() -> None:
    async def main() -> None:
        turns: list[float] = []

        async def charge(stop: Stop, database: str) -> None:
            assert database == "db"
            async for _ in stop.every(1.0):
                turns.append(asyncio.get_running_loop().time())

        worker = Loop(charge, "db", bound=5, after="http")
        assert (worker.name, worker.bound, worker.after, worker.on_drain) == ("charge", 5, "http", "finish")
        await run(worker, stop_at=3.0)
        assert turns == pytest.approx([0.0, 1.0, 2.0])

    virtual_time.run(main())


def test_what_a_loop_raises_ends_it() -> None:
    async def main() -> None:
        async def dies(stop: Stop) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await Loop(dies).run(ManualStop())

        async def is_cancelled_from_inside(stop: Stop) -> None:
            gone = asyncio.get_running_loop().create_future()
            gone.cancel()
            await gone

        # A cancel that nobody asked of the worker must not let it vanish as if it had been aborted.
        with pytest.raises(Exception, match="the worker itself was not"):
            await Loop(is_cancelled_from_inside).run(ManualStop())

    virtual_time.run(main())
