"""When partitions go: what has begun ends and is committed, what overruns is torn, what is lost is its new owner's."""

import asyncio
import hashlib

import pytest
from scripted_handler import EVERY_HALF_SECOND, Handler, run
from scripted_source import MemorySource, record

from quiesce.errors import HandlerStuck, RecordFailed
from quiesce.inbox.events import CommitLate
from quiesce.inbox.record import Record, TopicPartition
from quiesce.lifecycle.backoff import Backoff
from quiesce.testing import virtual_time
from quiesce.testing.manual_stop import ManualStop
from quiesce.workers import Consumer, Retries, batches

ZERO, ONE = TopicPartition("products", 0), TopicPartition("products", 1)


def two_partitions(count: int = 20) -> list[Record]:
    return [record(n, partition) for n in range(count) for partition in (0, 1)]


def test_what_has_begun_of_a_leaving_partition_ends_and_is_committed_and_nothing_more_of_it_begins() -> None:
    async def main() -> None:
        source, handler = MemorySource(two_partitions()), Handler(0.1)
        loop = asyncio.get_running_loop()
        loop.call_at(0.55, source.revoke, ZERO)
        stop = await run(Consumer(source, handler, concurrency=2), stop_at=10.0)
        assert source.committed == {ZERO: 6, ONE: 20}
        assert sorted(handler.handled) == sorted([*range(6), *range(20)])
        assert source.let_go[ZERO] == pytest.approx(0.6, abs=0.02), "the group waited longer than it had to"
        assert not stop.told(CommitLate)

    virtual_time.run(main())


def hot_key_first(count: int = 40) -> list[Record]:
    """The first two are of one key, which `hot` takes a second for; the others are quick."""
    return [record(n, key=b"hot" if n < 2 else b"k%d" % n) for n in range(count)]


async def hot(record: Record) -> None:
    await asyncio.sleep(1.0 if record.key == b"hot" else 0.01)


@pytest.mark.parametrize("how", ["revoked", "stopped"])
def test_K2_a_record_that_waits_behind_its_key_goes_to_the_next_owner_and_nothing_done_does(how: str) -> None:
    async def main() -> None:
        source = MemorySource(hot_key_first())
        done: list[int] = []

        async def handle(record: Record) -> None:
            await hot(record)
            done.append(record.offset)

        if how == "revoked":
            asyncio.get_running_loop().call_at(0.5, source.revoke, ZERO)
        stop = await run(Consumer(source, handle, concurrency=4), stop_at=0.5 if how == "stopped" else 10.0)
        assert sorted(done) == [0, *range(2, 40)]
        assert source.committed == {ZERO: 1}
        assert source.told(ZERO) == sorted(done)
        assert source.let_go.get(ZERO, 1.0) == pytest.approx(1.0, abs=0.05), "the one in hand is all that is waited for"
        assert not stop.abandoned

    virtual_time.run(main())


@pytest.mark.parametrize("how", ["revoked", "stopped"])
def test_K2_with_batches_too_what_is_done_behind_a_key_that_is_caught_up_one_by_one_does_not_come_again(
    how: str,
) -> None:
    async def main() -> None:
        late = (0, 2, 4, 6, 8)
        source = MemorySource([record(n, key=b"late" if n in late else b"k%d" % n) for n in range(40)])
        done: list[int] = []
        failures = [source.records[0]]

        async def handle(records: list[Record]) -> None:
            if failures:
                raise RecordFailed(failures.pop())
            await asyncio.sleep(0.2 if records[0].key == b"late" else 0.01)
            done.extend(one.offset for one in records)

        if how == "revoked":
            asyncio.get_running_loop().call_at(0.8, source.revoke, ZERO)
        consumer = Consumer(source, batches(handle), batch=10, concurrency=2, backoff=EVERY_HALF_SECOND)
        await run(consumer, stop_at=0.8 if how == "stopped" else 10.0)
        assert [offset for offset in done if offset in late] == [0, 2]
        assert sorted(done) == [0, 1, 2, 3, 5, 7, *range(9, 40)]
        assert source.committed == {ZERO: 4}
        assert source.told(ZERO) == sorted(done)
        assert source.let_go.get(ZERO, 0.9) == pytest.approx(0.9, abs=0.05)

    virtual_time.run(main())


def test_a_batch_that_fails_while_its_partition_goes_is_handed_back() -> None:
    async def main() -> None:
        source = MemorySource([record(n, key=b"k%d" % n) for n in range(8)])
        calls: list[int] = []

        async def handle(records: list[Record]) -> None:
            calls.append(len(records))
            await asyncio.sleep(0.1)
            raise ValueError("cannot handle it")

        asyncio.get_running_loop().call_at(0.05, source.revoke, ZERO)
        await run(Consumer(source, batches(handle), backoff=EVERY_HALF_SECOND), stop_at=10.0)
        assert calls == [8]
        assert not source.told(ZERO)
        assert source.let_go[ZERO] == pytest.approx(0.1, abs=0.02), "a back-off held up the group"

    virtual_time.run(main())


def test_an_idle_partition_goes_at_once_and_what_is_handled_of_it_is_committed_first() -> None:
    async def main() -> None:
        source = MemorySource([record(0), record(0, 1), record(1, 1)])
        # One of the other partition is always in hand, so that no commit is due for its own sake.
        handler = Handler(0.001)
        asyncio.get_running_loop().call_at(0.0045, source.revoke, ZERO)
        await run(Consumer(source, handler), stop_at=2.0)
        assert source.committed[ZERO] == 1
        assert source.let_go[ZERO] < 0.1

    virtual_time.run(main())


def test_K11_past_the_bound_the_handler_is_torn_before_the_partition_goes() -> None:
    async def main() -> None:
        source = MemorySource([record(0), record(0, 1)], revoke_bound=4.0)
        torn: list[float] = []
        effects: list[str] = []

        async def handle(record: Record) -> None:
            if record.partition == 1:
                return
            try:
                await asyncio.sleep(1e6)
                effects.append("committed")
            except asyncio.CancelledError:
                # As a transaction does that rolls back.
                await asyncio.sleep(0.1)
                torn.append(source.now())
                raise

        asyncio.get_running_loop().call_at(1.0, source.revoke, ZERO)
        stop = await run(Consumer(source, handle, concurrency=2), stop_at=30.0)
        assert torn == [pytest.approx(4.1)]
        assert source.let_go[ZERO] == pytest.approx(4.1, abs=0.05)
        assert torn[0] <= source.let_go[ZERO]
        assert source.committed == {ONE: 1}
        assert not effects
        assert not stop.told(CommitLate)
        assert not stop.abandoned

    virtual_time.run(main())


@pytest.mark.parametrize("how", ["revoked", "lost"])
def test_K11_a_handler_that_does_not_end_ends_the_service_naming_the_record_and_its_key(how: str) -> None:
    async def main() -> None:
        source = MemorySource([record(7, key=b"customer 4711"), record(0, 1)], revoke_bound=2.0)
        release = asyncio.Event()

        async def handle(record: Record) -> None:
            while record.partition == 0 and not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        loop = asyncio.get_running_loop()
        loop.call_at(1.0, source.revoke if how == "revoked" else source.lose, ZERO)
        with pytest.raises(HandlerStuck) as stuck:
            await run(Consumer(source, handle, concurrency=2), stop_at=60.0)
        assert loop.time() < 10.0
        told = str(stuck.value)
        assert "products[0]@7" in told
        assert hashlib.sha256(b"customer 4711").hexdigest()[:8] in told
        assert "customer" not in told
        assert source.committed == {ONE: 1}, "what the others did was not committed"
        release.set()
        await asyncio.sleep(0.01)

    virtual_time.run(main())


@pytest.mark.parametrize("in_batches", [False, True])
def test_K1_what_ends_after_its_partition_was_lost_is_not_committed_and_what_stays_goes_on(in_batches: bool) -> None:
    async def main() -> None:
        source = MemorySource(two_partitions(3))
        done: list[tuple[int, int]] = []

        async def handle(record: Record) -> None:
            for _ in range(10):
                try:
                    await asyncio.sleep(0.1)
                except asyncio.CancelledError:
                    # It swallows its cancel and ends well.
                    break
            done.append((record.partition, record.offset))

        async def handle_all(records: list[Record]) -> None:
            await handle(records[0])
            done.extend((one.partition, one.offset) for one in records[1:])

        asyncio.get_running_loop().call_at(0.55, source.lose, ZERO)
        handlers = batches(handle_all) if in_batches else handle
        stop = await run(Consumer(source, handlers, concurrency=2), stop_at=10.0)
        assert source.committed == {ONE: 3}
        assert sum(told.records for told in stop.told(CommitLate)) == (3 if in_batches else 1)
        assert {offset for partition, offset in done if partition == 1} == {0, 1, 2}

    virtual_time.run(main())


def test_K1_a_partition_that_went_and_came_back_begins_from_what_is_committed_and_no_commit_goes_back() -> None:
    async def main() -> None:
        source, handler = MemorySource([record(n) for n in range(4)]), Handler(0.1)
        asyncio.get_running_loop().call_at(0.15, source.rebalance)
        stop = await run(Consumer(source, handler, batch=2), stop_at=5.0)
        # The first was committed by then. The second was torn, and handled under the new number.
        assert source.committed == {ZERO: 4}
        assert handler.handled in ([0, 1, 2, 3], [0, 0, 1, 2, 3])
        assert sum(told.records for told in stop.told(CommitLate)) == len(handler.handled) - 4

    virtual_time.run(main())


def test_readiness_does_not_go_on_about_a_record_that_has_gone() -> None:
    async def main() -> None:
        source = MemorySource([record(0)])

        async def handle(_: Record) -> None:
            raise ConnectionRefusedError("no database")

        loop = asyncio.get_running_loop()
        consumer = Consumer(source, handle, ready_within=2.0)
        told: list[str | None] = []
        for at in (9.0, 20.0):
            loop.call_at(at, lambda: told.append(consumer.why_not_ready(loop.time())))
        loop.call_at(10.0, source.revoke, ZERO)
        await run(consumer, stop_at=30.0)
        assert told[0] is not None
        assert told[1] is None

    virtual_time.run(main())


def test_a_record_that_keeps_failing_is_let_go_with_its_partition() -> None:
    async def main() -> None:
        source, handler = MemorySource([record(0)]), Handler(fails={0: 99})
        asyncio.get_running_loop().call_at(1.3, source.revoke, ZERO)
        await run(Consumer(source, handler, backoff=EVERY_HALF_SECOND), stop_at=5.0)
        assert source.let_go[ZERO] == pytest.approx(1.3, abs=0.01), "a back-off held up the group"
        assert handler.began == [0, 0, 0]
        assert not source.committed

    virtual_time.run(main())


def test_when_one_partition_goes_while_a_record_of_it_waits_the_others_are_not_skipped() -> None:
    async def main() -> None:
        records = [record(0), record(0, 1), record(1), record(1, 1), record(2), record(2, 1)]
        source, handler = MemorySource(records), Handler(0.1, fails={1: 1})
        asyncio.get_running_loop().call_at(0.45, source.lose, ZERO)
        stop = await run(Consumer(source, handler, batch=6, backoff=EVERY_HALF_SECOND), stop_at=5.0)
        assert source.committed == {ZERO: 1, ONE: 3}
        assert not stop.told(CommitLate), "nothing that was handled was refused"

    virtual_time.run(main())


def test_a_batch_over_two_partitions_of_which_one_is_lost_is_torn_and_the_other_half_done_again() -> None:
    async def main() -> None:
        source = MemorySource(two_partitions(3))
        lists: list[list[tuple[int, int]]] = []

        async def handle(records: list[Record]) -> None:
            lists.append([(one.partition, one.offset) for one in records])
            await asyncio.sleep(1.0)

        asyncio.get_running_loop().call_at(0.5, source.lose, ZERO)
        stop = await run(Consumer(source, batches(handle)), stop_at=10.0)
        assert {partition for partition, _ in lists[0]} == {0, 1}
        assert lists[1:] == [[(1, 0), (1, 1), (1, 2)]]
        assert source.committed == {ONE: 3}
        assert not stop.told(CommitLate)

    virtual_time.run(main())


def test_K13_what_was_fetched_before_a_partition_went_is_not_begun_after_it() -> None:
    async def main() -> None:
        source, handler = MemorySource([record(n) for n in range(10)]), Handler(0.1)

        def go_without_a_word() -> None:
            # The client has noticed, and its word is still on the way to the loop.
            source.assignment += 1
            source.ours_since.pop(ZERO)

        asyncio.get_running_loop().call_at(0.25, go_without_a_word)
        await run(Consumer(source, handler), stop_at=5.0)
        assert handler.began == [0, 1, 2]

    virtual_time.run(main())


def test_a_commit_that_is_refused_though_nobody_says_what_is_lost_is_made_again_when_it_is_known() -> None:
    async def main() -> None:
        source, handler = MemorySource(two_partitions(2)), Handler(0.01)
        source.refuses = True
        loop = asyncio.get_running_loop()

        def noticed() -> None:
            source.refuses = False
            source.lose(ZERO)

        loop.call_at(3.0, noticed)
        consumer = Consumer(source, handler, ready_within=2.0)
        told: list[str | None] = []
        for at in (2.9, 15.0):
            loop.call_at(at, lambda: told.append(consumer.why_not_ready(loop.time())))
        stop = await run(consumer, stop_at=20.0)
        assert told[0] is not None
        assert told[1] is None
        assert source.committed == {ONE: 2}
        assert sum(told.records for told in stop.told(CommitLate)) == 2
        assert not stop.abandoned

    virtual_time.run(main())


def test_a_partition_that_is_taken_away_during_the_drain_is_not_held_longer_than_its_bound() -> None:
    async def main() -> None:
        source = MemorySource([record(0), record(0, 1)], revoke_bound=2.0)
        handler = Handler(60.0)
        loop = asyncio.get_running_loop()
        stop = ManualStop("products")
        stop.at(1.0, within=20.0)
        loop.call_at(2.0, source.revoke, ZERO)
        task = asyncio.create_task(Consumer(source, handler, concurrency=2).run(stop))
        await asyncio.sleep(5.0)
        assert source.let_go[ZERO] == pytest.approx(3.5, abs=0.05)
        assert handler.running == 1
        task.cancel()
        await asyncio.wait({task}, timeout=2.0)

    virtual_time.run(main())


@pytest.mark.parametrize("slow_from", [0, 300])
@pytest.mark.parametrize("seconds", [0.01, 0.2, 2.4, 4.0])
@pytest.mark.parametrize("how", ["revoked", "stopped"])
def test_a_hot_key_holds_up_no_other_and_nothing_comes_again_whenever_it_turns_slow(
    how: str, seconds: float, slow_from: int
) -> None:
    """Whatever it takes, as long as it ends within the revoke bound, which is 5 s; the others are quick."""

    async def main() -> None:
        records = [record(n, key=b"hot" if n % 3 == 0 else b"k%d" % n) for n in range(3000)]
        source = MemorySource(records)
        done: list[int] = []

        async def handle(one: Record) -> None:
            await asyncio.sleep(seconds if one.key == b"hot" and one.offset >= slow_from else 0.001)
            done.append(one.offset)

        if how == "revoked":
            asyncio.get_running_loop().call_at(10.0, source.revoke, ZERO)
        await run(Consumer(source, handle, concurrency=8), stop_at=10.0 if how == "stopped" else 30.0, within=10.0)
        assert len([n for n in done if n % 3]) > 600, "others waited for it"
        assert source.told(ZERO) == sorted(done)
        assert source.let_go.get(ZERO, 10.0) <= 10.0 + seconds + 0.1

    virtual_time.run(main())


def test_keys_that_fail_again_and_again_leave_the_others_their_turn() -> None:
    async def main() -> None:
        records = [record(n, key=b"bad%d" % n if n < 12 else b"k%d" % n) for n in range(200)]
        source = MemorySource(records)
        done: list[int] = []

        async def handle(one: Record) -> None:
            if one.offset < 12:
                # Longer than the wait, so that one of them always is due.
                await asyncio.sleep(3.0)
                raise ValueError("never")
            done.append(one.offset)

        retries = Retries(attempts=100, backoff=Backoff(first=1.0, ceiling=5.0))
        consumer = Consumer(source, handle, concurrency=4, retries=retries)
        stop = ManualStop(consumer.name)
        stop.at(400.0, within=5.0)
        await consumer.run(stop)
        assert done == list(range(12, 200))

    virtual_time.run(main())


def test_room_that_comes_while_a_failed_fetch_waits_for_its_next_try_ends_nothing() -> None:
    async def main() -> None:
        source = MemorySource(two_partitions(40), away=[(1.0, 20.0)])
        handler = Handler(0.3)
        stop = await run(Consumer(source, handler, concurrency=2, in_flight=10, batch=5), stop_at=60.0)
        assert len(handler.handled) == 80
        assert source.committed == {ZERO: 40, ONE: 40}
        assert not stop.abandoned

    virtual_time.run(main())


def test_keys_that_wait_for_their_next_attempt_hold_up_no_other_however_many_of_them_wait() -> None:
    async def main() -> None:
        records = [record(n, key=b"bad" if n % 2 == 0 else b"k%d" % n) for n in range(200)]
        source = MemorySource(records)
        done: list[int] = []

        async def handle(one: Record) -> None:
            await asyncio.sleep(0.001)
            if one.offset == 0 and asyncio.get_running_loop().time() < 60:
                raise ValueError("not yet")
            done.append(one.offset)

        retries = Retries(attempts=100, backoff=Backoff(first=1000.0, ceiling=1000.0))
        consumer = Consumer(source, handle, concurrency=4, retries=retries)
        stop = ManualStop(consumer.name)
        stop.at(20.0, within=5.0)
        await consumer.run(stop)
        assert sorted(done) == [n for n in range(200) if n % 2 == 1]

    virtual_time.run(main())
