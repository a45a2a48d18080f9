"""Concurrency by key, batches, and how much is fetched ahead."""

import asyncio
from typing import Any, Literal

import pytest
from scripted_asides import Kept, came_back
from scripted_handler import EVERY_HALF_SECOND, Handler, run
from scripted_source import MemorySource, record

from quiesce.errors import RecordFailed, SettingsError
from quiesce.inbox.events import HandlerFailed
from quiesce.inbox.record import Record, TopicPartition
from quiesce.lifecycle.backoff import Backoff
from quiesce.testing import virtual_time
from quiesce.workers import Consumer, batches, by_topic, by_type, json_value

ZERO, ONE = TopicPartition("products", 0), TopicPartition("products", 1)


def test_records_of_many_keys_run_beside_one_another_and_those_of_one_in_order() -> None:
    async def main() -> None:
        source = MemorySource([record(n, key=b"k%d" % (n % 5)) for n in range(50)])
        handler = Handler(0.1)
        await run(Consumer(source, handler, concurrency=4), stop_at=10.0)
        assert handler.most_running == 4
        assert all(offsets == list(range(int(key[1:]), 50, 5)) for key, offsets in handler.of_key.items() if key)
        assert source.committed == {ZERO: 50}

    virtual_time.run(main())


def test_K26_a_record_that_fails_waits_in_its_place_and_holds_up_its_key_alone() -> None:
    async def main() -> None:
        keys = {n: b"a" if n < 5 else b"b" for n in range(10)}
        source = MemorySource([record(n, key=keys[n]) for n in range(10)])
        handler = Handler(0.01, fails={0: 2, 2: 1})
        await run(Consumer(source, handler, backoff=EVERY_HALF_SECOND), stop_at=10.0)
        assert handler.of_key == {b"a": [0, 1, 2, 3, 4], b"b": [5, 6, 7, 8, 9]}
        # The other key was through before the first one's second try.
        assert handler.handled[:5] == [5, 6, 7, 8, 9]
        assert source.committed == {ZERO: 10}

    virtual_time.run(main())


def test_K27_a_waiting_record_stays_ours_and_is_run_once_when_its_time_comes() -> None:
    async def main() -> None:
        source, handler = MemorySource([record(0), record(0, 1)]), Handler(0.01, fails={0: 1})
        waits = Backoff(first=600.0, ceiling=600.0, draw=lambda: 1.0)
        loop = asyncio.get_running_loop()
        # A rebalance that leaves the partition alone changes nothing.
        loop.call_at(100.0, lambda: setattr(source, "assignment", 5))
        await run(Consumer(source, handler, backoff=waits), stop_at=1000.0)
        assert handler.began.count(0) == 3
        assert handler.instants[-1] == pytest.approx(600.0, abs=0.1)
        assert source.committed == {ZERO: 1, ONE: 1}

    virtual_time.run(main())


def test_records_without_a_key_keep_their_order_unless_they_are_said_to_be_free_of_it() -> None:
    async def main() -> None:
        cases: list[tuple[Literal["ordered", "free"], int]] = [("ordered", 1), ("free", 3)]
        for null_keys, most in cases:
            source = MemorySource([record(n, key=None) for n in range(9)])
            handler = Handler(0.1)
            await run(Consumer(source, handler, concurrency=3, null_keys=null_keys), stop_at=source.now() + 5.0)
            assert handler.most_running == most
            assert sorted(handler.handled) == list(range(9))

    virtual_time.run(main())


def test_no_more_of_a_partition_is_fetched_while_one_of_its_records_waits_and_the_others_flow() -> None:
    async def main() -> None:
        records = [record(n, 0, b"k%d" % n) for n in range(200)] + [record(n, 1, b"o%d" % n) for n in range(200)]
        source = MemorySource(records)
        began: dict[int, int] = {0: 0, 1: 0}
        release = asyncio.Event()

        async def handle(one: Record) -> None:
            began[one.partition] += 1
            if one.partition == 0 and one.offset == 0:
                await release.wait()
            await asyncio.sleep(0.001)

        loop = asyncio.get_running_loop()
        loop.call_at(20.0, release.set)
        seen: list[tuple[int, int]] = []
        loop.call_at(19.0, lambda: seen.append((began[0], began[1])))
        consumer = Consumer(source, handle, batch=10, in_flight=30, concurrency=2, handler_bound=None)
        await run(consumer, stop_at=40.0)
        assert seen[0][1] == 200
        assert 30 <= seen[0][0] <= 40
        assert frozenset({ZERO}) in source.fulls
        assert source.committed == {ZERO: 200, ONE: 200}

    virtual_time.run(main())


def test_a_partition_that_has_room_again_is_fetched_at_once() -> None:
    async def main() -> None:
        source = MemorySource([record(n, 0, b"k%d" % n) for n in range(300)])
        handler = Handler(0.001)
        loop = asyncio.get_running_loop()
        ends: list[float] = []
        handled_all = loop.create_task(until_handled(handler, 300))
        handled_all.add_done_callback(lambda _: ends.append(loop.time()))
        await run(Consumer(source, handler, batch=10, in_flight=30), stop_at=30.0)
        # A source that knows of no room says nothing for a second.
        assert ends
        assert ends[0] < 1.0
        assert frozenset({ZERO}) in source.fulls

    async def until_handled(handler: Handler, count: int) -> None:
        while len(handler.handled) < count:
            await asyncio.sleep(0.001)

    virtual_time.run(main())


def test_batches_come_in_order_and_large_and_are_committed_behind_one_another() -> None:
    async def main() -> None:
        source = MemorySource([record(n) for n in range(100)] + [record(n, 1) for n in range(100)])
        lists: list[list[Record]] = []

        async def handle(records: list[Record], word: str) -> None:
            assert word == "db"
            lists.append(records)
            await asyncio.sleep(0.05)

        await run(Consumer(source, batches(handle), "db", batch=40), stop_at=10.0)
        assert max(len(one) for one in lists) == 40
        for partition in (0, 1):
            of = [one.offset for records in lists for one in records if one.partition == partition]
            assert of == list(range(100))
        assert source.committed == {ZERO: 100, ONE: 100}

    virtual_time.run(main())


@pytest.mark.parametrize("named", [False, True])
def test_one_bad_record_of_a_batch_holds_up_its_key_alone_whether_or_not_it_is_named(named: bool) -> None:
    async def main() -> None:
        source = MemorySource([record(n, key=b"k%d" % (n % 7)) for n in range(60)])
        calls: list[list[int]] = []
        done: list[int] = []
        fails = {"left": 3}

        async def handle(records: list[Record]) -> None:
            calls.append([one.offset for one in records])
            await asyncio.sleep(0.01)
            guilty = [one for one in records if one.offset == 25]
            if guilty and fails["left"]:
                if named or len(records) == 1:
                    fails["left"] -= 1
                error = ValueError("cannot handle it")
                if named:
                    raise RecordFailed(guilty[0]) from error
                raise error
            done.extend(one.offset for one in records)

        stop = await run(Consumer(source, batches(handle), batch=60, backoff=EVERY_HALF_SECOND), stop_at=10.0)
        assert sorted(done) == list(range(60))
        for key in range(7):
            assert [offset for offset in done if offset % 7 == key] == list(range(key, 60, 7))
        behind = list(range(25, 60, 7))
        assert done[-len(behind) :] == behind, "its key was not the last, or others waited for it"
        assert [offsets for offsets in calls if len(offsets) == 1 and offsets[0] == 25][:2] == [[25], [25]]
        assert all(told.error == "ValueError" for told in stop.told(HandlerFailed))
        assert source.committed == {ZERO: 60}

    virtual_time.run(main())


def test_handlers_by_type_and_by_topic_get_their_records_with_the_decoded_value() -> None:
    async def main() -> None:
        got: list[tuple[str, int, Any]] = []

        def typed(offset: int, kind: str) -> Record:
            return Record("products", 0, offset, b"k", b'{"n": %d}' % offset, (("type", kind.encode()),))

        async def placed(record: Record, value: Any, word: str) -> None:
            got.append(("placed", record.offset, value["n"]))

        async def other(record: Record, value: Any, word: str) -> None:
            got.append(("other", record.offset, value["n"]))

        source = MemorySource([typed(0, "OrderPlaced"), typed(1, "OrderPaid"), typed(2, "OrderPlaced")])
        handlers = by_type({"OrderPlaced": placed}, default=other)
        await run(Consumer(source, handlers, "word", decode=json_value), stop_at=1.0)
        assert got == [("placed", 0, 0), ("other", 1, 1), ("placed", 2, 2)]
        got.clear()
        # One that came by a retry topic goes to the handler of the topic it comes from.
        origin = came_back()
        source = MemorySource([Record("products", 0, 0, b"k", b'{"n": 0}', origin), typed(1, "x")])
        await run(
            Consumer(source, by_topic({"orders": placed, "products": other}), "word", decode=json_value),
            stop_at=source.now() + 1.0,
        )
        assert got == [("other", 0, 0), ("other", 1, 1)]
        source = MemorySource([Record("products", 0, 0, b"k", b'{"n": 0}', origin)])
        handlers = by_topic({"orders": placed})
        consumer = Consumer(source, handlers, "word", decode=json_value, retry_topic=Kept())
        await run(consumer, stop_at=source.now() + 1.0)
        assert got[2:] == [("placed", 0, 0)]

    virtual_time.run(main())


def test_handlers_that_are_none_are_refused() -> None:
    with pytest.raises(SettingsError, match="got str, takes a coroutine function"):
        Consumer(MemorySource(), "handle")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="by_type"):
        by_type({})
    with pytest.raises(SettingsError, match="batches"):
        by_topic({"a": batches(Handler())})  # type: ignore[dict-item]
    for wrong in ({"concurrency": 0}, {"in_flight": 0}, {"handler_bound": 0.0}, {"null_keys": "any"}, {"deaths": 2}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            Consumer(MemorySource(), Handler(), **wrong)
