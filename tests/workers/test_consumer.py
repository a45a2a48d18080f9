"""The consumer commits what it has handled: no more, no less, whenever it is stopped, torn or failed."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_handler import EVERY_HALF_SECOND, Handler, run
from scripted_source import MemorySource, record

from quiesce.errors import SettingsError, Unavailable
from quiesce.inbox.events import BatchHandled
from quiesce.inbox.record import Record, TopicPartition
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.events import IterationEnded
from quiesce.testing import virtual_time
from quiesce.testing.manual_stop import ManualStop
from quiesce.workers import Consumer

ZERO, ONE = TopicPartition("products", 0), TopicPartition("products", 1)


def test_K3_records_are_handled_in_order_and_committed_behind_gaps() -> None:
    async def main() -> None:
        # Offsets with gaps, as compaction leaves them, in two partitions.
        source = MemorySource([record(3), record(7), record(2, 1), record(9), record(5, 1)])
        handler = Handler()
        stop = await run(Consumer(source, handler, batch=3), stop_at=10.0)
        assert [offset for offset in handler.handled if offset in (3, 7, 9)] == [3, 7, 9]
        assert [offset for offset in handler.handled if offset in (2, 5)] == [2, 5]
        assert source.committed == {ZERO: 10, ONE: 6}
        told = stop.told(BatchHandled)
        assert sum(one.records for one in told) == 5
        assert {one.consumer for one in told} == {"products"}
        # The first comes at once, since nobody knows of more; then they are gathered.
        assert len(source.commits) <= 3
        assert len(stop.told(IterationEnded)) == 5
        assert not stop.abandoned

    virtual_time.run(main())


def test_extra_arguments_reach_the_handler() -> None:
    async def main() -> None:
        seen: list[tuple[int, str]] = []

        async def handle(record: Record, word: str) -> None:
            seen.append((record.offset, word))

        consumer = Consumer(MemorySource([record(0)]), handle, "db")
        await run(consumer, stop_at=1.0)
        assert seen == [(0, "db")]
        assert list(consumer.resources) == [consumer.source]

    virtual_time.run(main())


def test_commits_are_gathered_while_there_is_always_something_in_hand() -> None:
    async def main() -> None:
        source, handler = MemorySource([record(n) for n in range(100)]), Handler(0.01)
        await run(Consumer(source, handler), stop_at=10.0)
        assert source.committed == {ZERO: 100}
        # A second of work: ten commits, one behind the other.
        assert 5 <= len(source.commits) <= 13
        places = [commit[ZERO] for commit in source.commits]
        assert places == sorted(places)

    virtual_time.run(main())


def test_K5_a_stop_commits_what_has_ended_hands_back_the_rest_and_leaves_the_group() -> None:
    async def main() -> None:
        source, handler = MemorySource([record(n) for n in range(20)]), Handler(0.1)
        stop = await run(Consumer(source, handler, batch=10), stop_at=0.35)
        assert handler.handled == handler.began == list(range(4))
        assert source.committed == {ZERO: 4}
        assert (1, ZERO) in source.done_with
        assert len(source.closed) == 1
        # Bounded by the five seconds that leaving may take; here nothing else is left to do.
        assert source.closed[0].at == pytest.approx(asyncio.get_running_loop().time() + 5.0)
        assert not stop.abandoned

    virtual_time.run(main())


@pytest.mark.parametrize("hangs", [True, False])
def test_s11_a_stop_ends_an_idle_fetch_at_once(hangs: bool) -> None:
    async def main() -> None:
        source = MemorySource(fetch_hangs=hangs)
        stop = await run(Consumer(source, Handler()), stop_at=12.3)
        assert asyncio.get_running_loop().time() == pytest.approx(12.3)
        assert not stop.told(IterationEnded), "an idle fetch is no iteration"
        assert len(source.closed) == 1

    virtual_time.run(main())


def test_a_batch_that_comes_at_the_very_instant_of_the_stop_is_not_begun() -> None:
    async def main() -> None:
        for stop_at in (0.001, 0.0010000001):
            source, handler = MemorySource([record(0)]), Handler()
            begin = asyncio.get_running_loop().time()
            stop = await run(Consumer(source, handler), stop_at=begin + stop_at)
            assert handler.handled in ([], [0])
            assert source.committed == ({ZERO: 1} if handler.handled else {})
            assert handler.handled or (1, ZERO) in source.done_with, "a revoke would wait for what nobody has"
            assert not stop.abandoned

    virtual_time.run(main())


def test_a_handler_that_fails_skips_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        source, handler = MemorySource([record(n) for n in range(6)]), Handler(fails={2: 3})
        stop = await run(Consumer(source, handler, batch=4, backoff=EVERY_HALF_SECOND), stop_at=10.0)
        assert handler.began == [0, 1, 2, 2, 2, 2, 3, 4, 5]
        assert handler.handled == [0, 1, 2, 3, 4, 5]
        # What was handled before the failure is committed meanwhile, and never anything behind it.
        assert {ZERO: 2} in source.commits
        assert source.committed == {ZERO: 6}
        assert [ended.failed for ended in stop.told(IterationEnded)] == [False, False, True, True, True, *[False] * 4]
        assert sum(told.records for told in stop.told(BatchHandled)) == 6

    virtual_time.run(main())
    errors = [line for line in caplog.records if line.levelname == "ERROR"]
    assert [line.getMessage().partition(":")[2].count("products[0]@2") for line in errors] == [1, 1, 1]
    assert all("ValueError at scripted_handler.py:" in line.getMessage() for line in errors)
    assert "value" not in caplog.text.replace("ValueError", "")


def test_a_stop_during_the_wait_for_a_retry_ends_it_with_nothing_lost() -> None:
    async def main() -> None:
        source, handler = MemorySource([record(n) for n in range(6)]), Handler(fails={2: 99})
        backoff = Backoff(first=60.0, draw=lambda: 1.0)
        stop = await run(Consumer(source, handler, batch=4, backoff=backoff), stop_at=5.0)
        assert asyncio.get_running_loop().time() == pytest.approx(5.0)
        assert source.committed == {ZERO: 2}
        assert handler.began == [0, 1, 2]
        assert (1, ZERO) in source.done_with
        assert not stop.abandoned

    virtual_time.run(main())


def test_a_cancel_from_inside_a_handler_is_a_failure_and_no_abort() -> None:
    async def main() -> None:
        source = MemorySource([record(0)])
        tries = 0

        async def handle(_: Record) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                lost = asyncio.get_running_loop().create_future()
                lost.cancel()
                await lost

        await run(Consumer(source, handle, backoff=EVERY_HALF_SECOND), stop_at=5.0)
        assert tries == 2
        assert source.committed == {ZERO: 1}

    virtual_time.run(main())


def test_a_handler_that_cancels_its_own_task_has_failed_and_is_not_begun_again_at_once() -> None:
    async def main() -> None:
        source = MemorySource([record(0)])
        tries: list[float] = []

        async def handle(_: Record) -> None:
            tries.append(source.now())
            if len(tries) < 3:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(1)

        await run(Consumer(source, handle, backoff=EVERY_HALF_SECOND), stop_at=5.0)
        assert tries == [pytest.approx(0.5 * n, abs=0.1) for n in range(3)]
        assert source.committed == {ZERO: 1}

    virtual_time.run(main())


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_what_would_tear_the_loop_down_ends_the_worker_instead(error: BaseException) -> None:
    async def main() -> None:
        async def handle(_: Record) -> None:
            raise error

        with pytest.raises(type(error)):
            await run(Consumer(MemorySource([record(0)]), handle), stop_at=5.0)

    virtual_time.run(main())


def test_s1_an_abort_is_not_an_outcome() -> None:
    async def main() -> None:
        source, handler = MemorySource([record(n) for n in range(6)]), Handler(0.1)
        stop = ManualStop("products")
        task = asyncio.create_task(Consumer(source, handler, batch=5).run(stop))
        await asyncio.sleep(0.25)
        task.cancel("past its deadline")
        await asyncio.wait({task}, timeout=1.5)
        assert task.cancelled()
        assert handler.began == [0, 1, 2]
        assert source.committed == {ZERO: 2}
        assert stop.abandoned == [("records of the batch in hand", 1)]
        assert (1, ZERO) in source.done_with

    virtual_time.run(main())


def test_an_abort_is_bounded_when_the_broker_does_not_answer() -> None:
    async def main() -> None:
        source, handler = MemorySource([record(n) for n in range(6)], away=[(0.2, 1e6)]), Handler(0.1)
        stop = ManualStop("products")
        task = asyncio.create_task(Consumer(source, handler, batch=5).run(stop))
        await asyncio.sleep(0.25)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert asyncio.get_running_loop().time() == pytest.approx(1.25, abs=0.01)
        # The one in hand, and those handled since the last commit that was answered.
        (what, count) = stop.abandoned[0]
        assert what == "records of the batch in hand"
        assert count == 1 + 2 - source.committed.get(ZERO, 0)

    virtual_time.run(main())


def test_an_abort_is_bounded_when_a_commit_ignores_its_deadline() -> None:
    async def main() -> None:
        source, handler = MemorySource([record(n) for n in range(6)], commit_seconds=1e6), Handler(0.1)
        task = asyncio.create_task(Consumer(source, handler, batch=5).run(ManualStop("products")))
        await asyncio.sleep(0.25)
        task.cancel()
        await asyncio.wait({task}, timeout=1.1)
        assert task.cancelled()

    virtual_time.run(main())


def test_the_wait_for_a_retry_begins_anew_after_a_success() -> None:
    async def main() -> None:
        source, handler = MemorySource([record(0), record(1)]), Handler(0.0, fails={0: 3, 1: 1})
        backoff = Backoff(first=1.0, ceiling=60.0, draw=lambda: 1.0)
        await run(Consumer(source, handler, backoff=backoff), stop_at=100.0)
        # One, two and four seconds for the first record, one for the second.
        assert handler.handled == [0, 1]
        assert handler.instants[-1] == pytest.approx(8.0, abs=0.01)

    virtual_time.run(main())


def test_an_abort_that_was_asked_for_is_not_reported() -> None:
    async def main() -> None:
        source, handler = MemorySource([record(0)]), Handler(10.0)
        stop = ManualStop("products")
        task = asyncio.create_task(Consumer(source, handler, on_drain="cancel").run(stop))
        await asyncio.sleep(1.0)
        stop.now()
        task.cancel()
        await asyncio.wait({task})
        assert not source.committed
        assert not stop.abandoned

    virtual_time.run(main())


def test_in_a_drain_what_is_done_is_committed_whatever_still_runs() -> None:
    async def main() -> None:
        source = MemorySource([record(0, key=b"quick"), record(1, key=b"slow"), record(0, 1)], commit_seconds=0.2)
        loop = asyncio.get_running_loop()

        async def handle(record: Record) -> None:
            await asyncio.sleep(1e6 if record.key == b"slow" else 3.0)

        stop = ManualStop("products")
        stop.at(1.0, within=10.0)
        task = asyncio.create_task(Consumer(source, handle, concurrency=3).run(stop))
        await asyncio.sleep(10.5)
        assert source.committed == {ZERO: 1, ONE: 1}
        loop.call_at(11.0, task.cancel)
        await asyncio.wait({task}, timeout=5.0)
        assert stop.abandoned == [("records of the batch in hand", 1)]

    virtual_time.run(main())


def test_while_brokers_are_away_it_holds_and_waits_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        # Away when it fetches first, and again when it has handled the batch and would commit.
        source = MemorySource([record(n) for n in range(3)], away=[(0.0, 600.0), (606.0, 4000.0)])
        handler = Handler(5.0)
        stop = await run(Consumer(source, handler), stop_at=5000.0)
        assert handler.began == [0, 1, 2], "what is handled is not handled again for want of a commit"
        assert source.committed == {ZERO: 3}
        assert sum(told.records for told in stop.told(BatchHandled)) == 3

    virtual_time.run(main())
    warnings = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    # The fetch of the first outage; a fetch and a commit of the second.
    assert [line.partition(", ")[0] for line in warnings] == [
        "products: cannot fetch",
        "products: cannot fetch",
        "products: cannot commit",
    ]


@pytest.mark.parametrize("within", [20.0, 2.0])
def test_with_brokers_gone_a_stop_ends_it_inside_its_bound_and_it_says_what_is_left(within: float) -> None:
    async def main() -> None:
        source = MemorySource([record(n) for n in range(3)], away=[(0.005, 1e6)])
        # The stop comes at the end of the first try.
        consumer = Consumer(source, Handler())
        stop = ManualStop(consumer.name)
        stop.at(5.02, within=within)
        await consumer.run(stop)
        # It tries as long as it may, and has time left to leave the group in.
        kept = min(5.0, 0.4 * within)
        assert kept - 1e-6 <= stop.remaining() <= kept + 0.2
        assert len(source.closed) == 1
        assert stop.abandoned == [("handled records without a commit", 3)]

    virtual_time.run(main())


def test_the_last_commit_waits_for_a_rebalance_as_long_as_the_drain_lets_it() -> None:
    async def main() -> None:
        source = MemorySource([record(n) for n in range(3)], commit_seconds=9.0)
        stop = await run(Consumer(source, Handler()), stop_at=1.0, within=20.0)
        assert (source.committed, stop.abandoned) == ({ZERO: 3}, [])

    virtual_time.run(main())


def test_K7_while_a_commit_waits_for_a_rebalance_handling_goes_on() -> None:
    async def main() -> None:
        source = MemorySource([record(n) for n in range(30)], commit_seconds=4.0)
        handler, seen = Handler(0.1), []
        asyncio.get_running_loop().call_at(3.05, lambda: seen.append((len(handler.handled), dict(source.committed))))
        stop = await run(Consumer(source, handler), stop_at=30.0)
        assert seen == [(30, {})]
        assert (source.committed, sorted(handler.handled), stop.abandoned) == ({ZERO: 30}, list(range(30)), [])

    virtual_time.run(main())


def test_an_error_that_is_no_outage_ends_the_worker() -> None:
    async def main() -> None:
        source = MemorySource([record(0)])
        source.fetch_errors = [Unavailable("for now"), PermissionError("no right to read the group")]
        with pytest.raises(PermissionError):
            await run(Consumer(source, Handler()), stop_at=5.0)

    virtual_time.run(main())


def test_a_source_that_cannot_leave_the_group_does_not_fail_the_worker() -> None:
    async def main() -> None:
        source = MemorySource([record(0)])
        source.close_error = Unavailable("all brokers are down")
        await run(Consumer(source, Handler()), stop_at=1.0)
        assert source.committed == {ZERO: 1}

    virtual_time.run(main())


@pytest.mark.parametrize(("within", "at_most"), [(20.0, 5.0), (3.0, 2.4)])
def test_K19_a_group_that_cannot_be_left_in_time_is_no_reason_to_be_aborted(
    within: float, at_most: float, caplog: pytest.LogCaptureFixture
) -> None:
    """A member is let go once its group is through with a rebalance, which waits for the session of a dead one."""

    async def main() -> None:
        source = MemorySource([record(0)])
        source.close_hangs = True
        began = asyncio.get_running_loop().time()
        stop = await run(Consumer(source, Handler()), stop_at=began + 1.0, within=within)
        assert asyncio.get_running_loop().time() - began == pytest.approx(1.0 + at_most, abs=0.1)
        assert source.committed == {ZERO: 1}
        assert stop.abandoned == []

    virtual_time.run(main())
    assert "the group was not left in" in caplog.text
    assert "a rebalance" in caplog.text


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.dictionaries(st.integers(0, 11), st.integers(1, 3), max_size=4),
    st.integers(1, 400),
    st.booleans(),
    st.lists(st.tuples(st.floats(0, 3, allow_nan=False), st.sampled_from([ZERO, ONE])), max_size=3),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_wherever_it_is_stopped_or_torn_only_the_handled_prefix_is_committed(
    count: int, batch: int, fails: dict[int, int], turn: int, torn: bool, rebalances: list[tuple[float, TopicPartition]]
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_time.VirtualLoop)
        # Odd offsets lie in one partition, even ones in the other.
        source = MemorySource([record(n, n % 2) for n in range(count)], commit_seconds=0.01)
        handler = Handler(fails=dict(fails))
        stop = ManualStop("products")
        consumer = Consumer(source, handler, batch=batch, backoff=EVERY_HALF_SECOND)
        for at, partition in rebalances:
            loop.call_at(at, source.rebalance, partition)
        task = asyncio.create_task(consumer.run(stop))
        loop.at_turn(loop.turns + turn, task.cancel if torn else stop.now)
        stop.at(20.0)
        await asyncio.wait({task}, timeout=40.0)
        assert task.done()
        committed = {r.offset for r in source.records if r.offset < source.committed.get(r.source, 0)}
        assert committed <= set(handler.handled), "committed ahead of handling, or skipped"
        if not torn and not rebalances:
            assert set(handler.handled) == committed, "handled and not committed before the exit"
            for parity in (0, 1):
                of_partition = [offset for offset in handler.handled if offset % 2 == parity]
                assert of_partition == sorted(set(of_partition)), "out of order, or twice"
        assert stop.in_hand() == []

    virtual_time.run(main())


def test_wrong_terms_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="batch: got 0"):
        Consumer(MemorySource(), Handler(), batch=0)
    with pytest.raises(SettingsError, match="bound: got -1"):
        Consumer(MemorySource(), Handler(), bound=-1)
