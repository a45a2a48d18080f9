"""The stop token: nothing begins after a stop, everything idle wakes, and an abort can be told from a failure."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from quiesce.lifecycle.events import IterationEnded
from quiesce.supervisor.stop import WAIT_ENDS_WITHIN
from quiesce.testing import virtual_time
from quiesce.testing.manual_stop import ManualStop


def virtually(scenario: Callable[[virtual_time.VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_time.VirtualLoop)
        await scenario(loop)

    virtual_time.run(main())


@pytest.mark.parametrize("stop_is_set_first", [True, False], ids=["stop before tick", "tick before stop"])
@pytest.mark.parametrize("tick", [1, 2, 7])
def test_no_iteration_begins_at_the_exact_tick_whichever_callback_comes_first(
    stop_is_set_first: bool, tick: int
) -> None:
    async def scenario(loop: virtual_time.VirtualLoop) -> None:
        stop = ManualStop()
        began: list[float] = []

        async def work() -> None:
            async for _ in stop.every(1.0):
                began.append(loop.time())
                if not stop_is_set_first and loop.time() == tick - 1:
                    # The sleep up to the tick sets its timer in this turn; the stop's comes behind it.
                    loop.call_soon(lambda: loop.call_soon(lambda: stop.at(float(tick))))

        if stop_is_set_first:
            stop.at(float(tick))
        await work()
        assert loop.time() == tick, "both were due at this very instant"
        assert began == [float(n) for n in range(tick)]

    virtually(scenario)


def test_no_iteration_begins_behind_a_stop_at_any_turn_of_the_loop() -> None:
    """Stops between two turns, for each turn there is: what begins later than that is none."""
    for turn in range(1, 60):

        async def scenario(loop: virtual_time.VirtualLoop, turn: int = turn) -> None:
            stop = ManualStop()
            stopped_at: list[int] = []
            said: list[str] = []

            def fire() -> None:
                stop.now()
                stopped_at.append(len(said))

            async def every() -> None:
                async for _ in stop.every(1.0):
                    said.append("every")

            async def begins() -> None:
                while (iteration := stop.begin("by hand")) is not None:
                    with iteration:
                        said.append("by hand")
                        await asyncio.sleep(0.5)
                    await stop.sleep(0.5)

            loop.at_turn(loop.turns + turn, fire)
            await asyncio.gather(every(), begins())
            assert len(said) == stopped_at[0]
            assert stop.in_hand() == []

        virtually(scenario)


def test_threads_that_begin_against_a_stop_are_in_hand_or_refused() -> None:
    async def main() -> None:
        for _ in range(100):
            stop = ManualStop()
            start = threading.Barrier(5)
            late: list[str] = []
            fired = threading.Event()

            def begins(
                stop: ManualStop = stop,
                start: threading.Barrier = start,
                fired: threading.Event = fired,
                late: list[str] = late,
            ) -> None:
                start.wait(5)
                while True:
                    # Asked before the door: if the stop was complete by then, the door must be shut.
                    complete = fired.is_set()
                    iteration = stop.begin("stretch")
                    if iteration is None:
                        return
                    with iteration:
                        if complete:
                            late.append("began behind the stop")

            threads = [threading.Thread(target=begins) for _ in range(4)]
            for thread in threads:
                thread.start()
            start.wait(5)
            stop.now()
            fired.set()
            for thread in threads:
                thread.join(5)
                assert not thread.is_alive()
            assert late == []
            assert stop.in_hand() == []
            assert len(stop.told(IterationEnded)) == stop.begun

    asyncio.run(main())


def test_every_skips_what_it_missed_and_takes_zero_seconds() -> None:
    async def scenario(loop: virtual_time.VirtualLoop) -> None:
        stop = ManualStop()
        began: list[float] = []
        async for _ in stop.every(1.0):
            began.append(loop.time())
            await asyncio.sleep(2.5 if len(began) == 1 else 0.25)
            if len(began) == 4:
                stop.now()
        assert began == [0.0, 3.0, 4.0, 5.0]

        stop = ManualStop()
        turns = 0
        async for _ in stop.every(0):
            turns += 1
            if turns == 100:
                stop.now()
        assert turns == 100
        assert loop.time() < 6
        with pytest.raises(ValueError, match="takes seconds"):
            stop.every(-1)

        # Left by `break`, nothing stays in hand.
        stop = ManualStop()
        async for _ in stop.every(1.0):
            assert len(stop.in_hand()) == 1
            break
        assert stop.in_hand() == []
        assert len(stop.told(IterationEnded)) == 1

    virtually(scenario)


def test_every_sync_iterates_in_a_thread_and_never_behind_a_stop() -> None:
    async def main() -> None:
        stop = ManualStop()
        turns: list[bool] = []
        some = threading.Event()

        def work() -> None:
            for _ in stop.every_sync(0.01):
                turns.append(stop.requested)
                if len(turns) == 3:
                    some.set()

        working = asyncio.create_task(asyncio.to_thread(work))
        await asyncio.to_thread(some.wait, 5)
        stop.now()
        await asyncio.wait({working}, timeout=1)
        assert working.done()
        assert stop.in_hand() == []
        assert len(stop.told(IterationEnded)) == stop.begun >= 3

    asyncio.run(main())


@pytest.mark.parametrize("how", ["wait", "sleep", "every", "queue", "hanging fetch"])
def test_s11_a_stop_wakes_every_idle_wait_at_once(how: str) -> None:
    async def scenario(loop: virtual_time.VirtualLoop) -> None:
        stop = ManualStop()
        items: asyncio.Queue[str] = asyncio.Queue()

        async def hanging_fetch() -> str:
            await asyncio.sleep(3600)
            return "never"

        async def idle() -> object:
            match how:
                case "wait":
                    await stop.wait()
                    return None
                case "sleep":
                    return await stop.sleep(3600)
                case "every":
                    return [None async for _ in stop.every(3600)]
                case "queue":
                    return await stop.or_stop(items.get())
                case _:
                    return await stop.or_stop(hanging_fetch())

        stop.at(10.0)
        result = await idle()
        assert loop.time() == 10.0
        assert result in (None, False, [None])
        # From then on none waits at all.
        await idle() if how != "every" else None
        assert loop.time() == 10.0

    virtually(scenario)


async def test_s11_a_stop_wakes_a_worker_that_listens_to_postgres(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        heard: asyncio.Queue[str] = asyncio.Queue()
        await connection.add_listener("jobs", lambda *what: heard.put_nowait(str(what[3])))
        stop = ManualStop()
        got: list[str | None] = []

        async def listens() -> None:
            while (payload := await stop.or_stop(heard.get())) is not None:
                got.append(payload)

        listening = asyncio.create_task(listens())
        await connection.execute("select pg_notify('jobs', 'one')")
        async with asyncio.timeout(5):
            while not got:
                await asyncio.sleep(0.01)
        stop.now()
        await asyncio.wait({listening}, timeout=0.5)
        assert listening.done()
        assert got == ["one"]
    finally:
        await connection.close()


def test_s11_threads_are_woken_by_wait_sync_sleep_sync_and_on_stop() -> None:
    async def main() -> None:
        stop = ManualStop()
        items: queue.Queue[str | None] = queue.Queue()
        stop.on_stop(items.put, None)
        about_to_wait = threading.Semaphore(0)
        waits: list[Callable[[], object]] = [
            lambda: stop.wait_sync(60),
            lambda: stop.sleep_sync(60),
            lambda: items.get(timeout=60),
        ]

        def begin(wait: Callable[[], object]) -> object:
            about_to_wait.release()
            return wait()

        waiting = [asyncio.create_task(asyncio.to_thread(begin, wait)) for wait in waits]
        # Some are in their waits now, others not yet: both must end.
        for _ in waits:
            assert await asyncio.to_thread(about_to_wait.acquire, timeout=5)
        stop.now()
        done, _ = await asyncio.wait(waiting, timeout=1)
        assert len(done) == 3
        assert [task.result() for task in waiting] == [True, False, None]
        # Once a stop was requested, whoever comes is woken at once.
        stop.on_stop(items.put, "late")
        assert items.get_nowait() == "late"

    asyncio.run(main())


def test_a_waker_that_fails_spoils_neither_the_stop_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(loop: virtual_time.VirtualLoop) -> None:
        stop = ManualStop()
        woken: list[str] = []
        stop.on_stop(lambda: 1 / 0)
        stop.on_stop(woken.append, "second")
        stop.now()
        assert woken == ["second"]
        assert stop.requested

    virtually(scenario)
    assert "waking it for the stop failed" in caplog.text


def test_or_stop_loses_no_item_and_passes_on_errors() -> None:
    async def scenario(loop: virtual_time.VirtualLoop) -> None:
        items: asyncio.Queue[int] = asyncio.Queue()

        async def stubborn() -> str:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(0.25)  # it had the item already, and brings it all the same
            return "item"

        async def fails() -> str:
            raise ZeroDivisionError

        # At every turn around the instant at which the item comes: it is returned, or still in the queue.
        for turn in range(1, 20):
            stop = ManualStop()
            loop.call_later(1.0, items.put_nowait, turn)
            loop.at_turn(loop.turns + turn, stop.now)
            got = await stop.or_stop(items.get())
            await asyncio.sleep(2.0)
            assert got == turn or items.get_nowait() == turn
            assert items.empty()

        stop = ManualStop()
        stop.at(loop.time() + 1)
        assert await stop.or_stop(stubborn()) == "item"
        with pytest.raises(ZeroDivisionError):
            await ManualStop().or_stop(fails())
        # What never began after a stop is closed, and warns of nothing.
        assert await stop.or_stop(fails()) is None

    virtually(scenario)


def test_or_stop_is_bounded_and_its_own_cancel_takes_the_wait_along(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(loop: virtual_time.VirtualLoop) -> None:
        said: list[str] = []

        async def deaf() -> str:
            until = loop.time() + 5
            while loop.time() < until:
                try:
                    await asyncio.sleep(until - loop.time())
                except asyncio.CancelledError:
                    said.append("ignored")
            return "too late"

        stop = ManualStop()
        stop.at(1.0)
        assert await stop.or_stop(deaf()) is None
        assert loop.time() == pytest.approx(1.0 + WAIT_ENDS_WITHIN)
        await asyncio.sleep(10)

        async def polite() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                said.append("put down")

        waiting = asyncio.create_task(ManualStop().or_stop(polite()))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        assert said == ["ignored", "put down"]

    virtually(scenario)
    assert "did not end in 1 s" in caplog.text


def test_an_abort_carries_its_cause_and_only_the_first_counts() -> None:
    async def scenario(loop: virtual_time.VirtualLoop) -> None:
        stop = ManualStop()
        assert (stop.aborted, stop.abort_cause) == (False, None)
        stop.abort("its time is over")
        stop.abort("received SIGTERM again")
        assert (stop.aborted, stop.abort_cause) == (True, "its time is over")

    virtually(scenario)


def test_remaining_counts_down_to_the_deadline() -> None:
    async def scenario(loop: virtual_time.VirtualLoop) -> None:
        stop = ManualStop()
        assert stop.remaining() == float("inf")
        stop.now(within=5)
        stop.fire("again", stop.deadline.before(3))
        await asyncio.sleep(2)
        assert stop.remaining() == pytest.approx(3)
        await asyncio.sleep(9)
        assert stop.remaining() == 0

    virtually(scenario)


def test_the_clock_of_a_token_is_the_loops() -> None:
    async def main() -> None:
        assert ManualStop().time() == pytest.approx(time.monotonic(), abs=1)

    asyncio.run(main())
