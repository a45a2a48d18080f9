"""What becomes of a record whose handler fails: tried again, waited with, put off, set aside. Nothing is skipped."""

import asyncio
from typing import Any

import pytest
from scripted_asides import Kept, Starts, came_back
from scripted_handler import EVERY_HALF_SECOND, Handler, run
from scripted_source import MemorySource, record

from quiesce.errors import QuiesceError, SettingsError, Unavailable
from quiesce.inbox.events import HandlerFailed, RecordPostponed, RecordSetAside
from quiesce.inbox.record import Record, TopicPartition
from quiesce.lifecycle.backoff import Backoff
from quiesce.testing import virtual_time
from quiesce.testing.manual_stop import ManualStop
from quiesce.workers import Consumer, Retries, batches
from quiesce.workers.retries import Verdict, is_outage

ZERO, ONE = TopicPartition("products", 0), TopicPartition("products", 1)


class PostgresIsAway(Exception):
    sqlstate = "57P01"


def test_after_the_last_attempt_a_record_is_set_aside_with_its_reason_and_its_key_goes_on() -> None:
    async def main() -> None:
        source, handler, dead = MemorySource([record(n) for n in range(4)]), Handler(fails={1: 99}), Kept()
        consumer = Consumer(source, handler, retries=Retries(attempts=3, backoff=EVERY_HALF_SECOND), dead_letters=dead)
        stop = await run(consumer, stop_at=10.0)
        assert handler.began == [0, 1, 1, 1, 2, 3]
        ((offset, reason),) = dead.records
        assert (offset, reason.code, reason.error, reason.tries) == (1, "failed", "ValueError", 3)
        assert "products[0]@1" in reason.message
        assert source.committed == {ZERO: 4}
        assert [told.reason for told in stop.told(RecordSetAside)] == ["failed"]
        assert len(stop.told(HandlerFailed)) == 3

    virtual_time.run(main())


@pytest.mark.parametrize("how", ["never", "retryable is False"])
def test_what_would_fail_again_is_set_aside_at_the_first_try(how: str) -> None:
    class NoSuchProduct(Exception):
        retryable = how == "never"

    async def main() -> None:
        source, dead = MemorySource([record(0)]), Kept()

        async def handle(_: Record) -> None:
            raise NoSuchProduct

        never = (NoSuchProduct,) if how == "never" else ()
        await run(Consumer(source, handle, retries=Retries(never=never), dead_letters=dead), stop_at=5.0)
        assert [(offset, reason.tries) for offset, reason in dead.records] == [(0, 1)]
        assert source.committed == {ZERO: 1}

    virtual_time.run(main())


def test_without_dead_letters_no_record_is_ever_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        source, handler = MemorySource([record(0), record(1), record(5, 1)]), Handler(fails={0: 50})
        await run(Consumer(source, handler, retries=Retries(attempts=2, backoff=EVERY_HALF_SECOND)), stop_at=60.0)
        assert handler.handled == [5, 0, 1]
        assert source.committed == {ZERO: 2, ONE: 6}

    virtual_time.run(main())
    assert "there are no dead letters" in caplog.text


@pytest.mark.parametrize("in_batches", [False, True])
def test_K32_a_database_that_is_away_is_waited_for_and_no_attempt_is_counted(in_batches: bool) -> None:
    async def main() -> None:
        source, dead = MemorySource([record(n, key=b"k%d" % n) for n in range(5)]), Kept()
        loop = asyncio.get_running_loop()
        done: list[int] = []
        calls = {"count": 0}

        async def handle(one: Record) -> None:
            calls["count"] += 1
            await asyncio.sleep(0.01)
            if loop.time() < 600.0:
                raise PostgresIsAway("terminating connection due to administrator command")
            done.append(one.offset)

        async def handle_all(records: list[Record]) -> None:
            for one in records:
                await handle(one)

        handlers = batches(handle_all) if in_batches else handle
        consumer = Consumer(source, handlers, retries=Retries(attempts=1), dead_letters=dead)
        told: list[str | None] = []
        loop.call_at(300.0, lambda: told.append(consumer.why_not_ready(loop.time())))
        loop.call_at(660.0, lambda: told.append(consumer.why_not_ready(loop.time())))
        stop = await run(consumer, stop_at=700.0)
        assert sorted(done) == list(range(5))
        assert not dead.records
        assert source.committed == {ZERO: 5}
        assert calls["count"] < 1000
        assert all(failed.outage for failed in stop.told(HandlerFailed))
        assert told[0] is not None
        assert "administrator" in told[0]
        assert told[1] is None

    virtual_time.run(main())


def test_K32_a_stop_still_works_while_the_database_is_away() -> None:
    async def main() -> None:
        source = MemorySource([record(n) for n in range(5)])

        async def handle(_: Record) -> None:
            raise ConnectionRefusedError("no database")

        stop = await run(Consumer(source, handle), stop_at=100.0)
        assert asyncio.get_running_loop().time() == pytest.approx(100.0, abs=0.1)
        assert not source.committed
        assert not stop.abandoned

    virtual_time.run(main())


def test_K17_a_handler_that_takes_too_long_is_torn_and_that_counts_as_an_attempt() -> None:
    async def main() -> None:
        source, dead = MemorySource([record(0, key=b"a"), record(1, key=b"b")]), Kept()
        torn: list[float] = []

        async def handle(one: Record) -> None:
            if one.offset == 0:
                try:
                    await asyncio.sleep(1e6)
                except asyncio.CancelledError:
                    torn.append(source.now())
                    raise

        retries = Retries(attempts=2, backoff=EVERY_HALF_SECOND)
        consumer = Consumer(source, handle, handler_bound=10.0, retries=retries, dead_letters=dead)
        await run(consumer, stop_at=60.0)
        # The first one may have been an outage. Then another record is handled.
        assert torn == [pytest.approx(at, abs=0.1) for at in (10.0, 20.5, 31.0)]
        ((offset, reason),) = dead.records
        assert (offset, reason.code, reason.tries) == (0, "failed", 2)
        assert "handler_bound" in reason.message
        assert source.committed == {ZERO: 2}

    virtual_time.run(main())


def test_K5_a_stop_commits_neither_what_failed_nor_what_never_began() -> None:
    async def main() -> None:
        # One key a record: all but the second are done, and the last has not begun when the stop comes.
        source = MemorySource([record(n, key=b"k%d" % n) for n in range(5)])
        handler, waits = Handler(1.0, fails={1: 99}), Backoff(first=60.0, ceiling=60.0, draw=lambda: 1.0)
        await run(Consumer(source, handler, backoff=waits), stop_at=3.5)
        assert handler.handled == [0, 2, 3]
        assert handler.began == [0, 1, 2, 3]
        assert source.committed == {ZERO: 1}

    virtual_time.run(main())


def test_dead_letters_that_are_away_hold_the_key_and_the_handler_is_not_run_again_meanwhile() -> None:
    async def main() -> None:
        source = MemorySource([record(0, key=b"a"), record(1, key=b"a"), record(2, key=b"b")])
        handler, dead = Handler(fails={0: 99}), Kept(away_until=100.0)
        consumer = Consumer(source, handler, retries=Retries(attempts=1), dead_letters=dead)
        told: list[str | None] = []
        loop = asyncio.get_running_loop()
        loop.call_at(60.0, lambda: told.append(consumer.why_not_ready(loop.time())))
        await run(consumer, stop_at=200.0)
        assert handler.began == [0, 2, 1]
        assert handler.instants[-1] > 100.0
        assert [offset for offset, _ in dead.records] == [0]
        assert source.committed == {ZERO: 3}
        assert told[0] is not None
        assert "no such topic" in told[0]

    virtual_time.run(main())


def test_a_record_that_cannot_even_be_set_aside_stays_and_holds_the_commit(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        source = MemorySource([record(0, key=b"a"), record(1, key=b"b")])
        handler, dead = Handler(fails={0: 99}), Kept(refuses=[0])
        stop = await run(Consumer(source, handler, retries=Retries(attempts=1), dead_letters=dead), stop_at=100.0)
        assert handler.began == [0, 1]
        assert source.committed == {ZERO: 0}
        assert source.told(ZERO) == [1]
        assert not stop.abandoned

    virtual_time.run(main())
    assert "products[0]@0 is too large" in caplog.text


def test_with_a_retry_topic_a_failed_record_is_put_off_and_those_behind_it_do_not_wait() -> None:
    async def main() -> None:
        source, later, dead = MemorySource([record(n) for n in range(3)]), Kept(), Kept()
        handler = Handler(fails={0: 1, 1: 1})
        source.records = [
            record(0),
            # Its second try failed on the retry topic.
            Record("products", 0, 1, b"key", b"v", came_back(tries=2)),
            record(2),
        ]
        consumer = Consumer(
            source,
            handler,
            retries=Retries(attempts=3, backoff=EVERY_HALF_SECOND),
            retry_topic=later,
            dead_letters=dead,
            wall=lambda: 1_000_000.0 + source.now(),
        )
        stop = await run(consumer, stop_at=5.0)
        assert handler.began == [0, 1, 2]
        assert [(offset, reason.tries) for offset, reason in later.records] == [(0, 1)]
        assert later.not_before == [pytest.approx(1_000_000.5, abs=0.1)]
        assert [(offset, reason.tries) for offset, reason in dead.records] == [(1, 3)]
        assert source.committed == {ZERO: 3}
        assert len(stop.told(RecordPostponed)) == 1

    virtual_time.run(main())


@pytest.mark.parametrize("in_batches", [False, True])
def test_K27_a_record_goes_on_waiting_until_the_time_its_headers_say(in_batches: bool) -> None:
    async def main() -> None:
        def until(offset: int, seconds: int, key: bytes) -> Record:
            headers = came_back(not_before=(1_000_000 + seconds) * 1000)
            return Record("products", 0, offset, key, b"v", headers)

        source = MemorySource([until(0, 50, b"a"), until(1, 10, b"b"), until(2, 5, b"a")])
        begun: dict[int, float] = {}

        async def handle(one: Record) -> None:
            begun[one.offset] = source.now()

        async def handle_all(records: list[Record]) -> None:
            for one in records:
                await handle(one)

        handlers = batches(handle_all) if in_batches else handle
        consumer = Consumer(source, handlers, retry_topic=Kept(), wall=lambda: 1_000_000.0 + source.now())
        await run(consumer, stop_at=100.0)
        assert begun == {0: pytest.approx(50, abs=0.1), 1: pytest.approx(10, abs=0.1), 2: pytest.approx(50, abs=0.1)}
        assert source.committed == {ZERO: 3}

    virtual_time.run(main())


def test_an_abort_by_shutdown_is_no_attempt() -> None:
    async def main() -> None:
        source, dead = MemorySource([record(0)]), Kept()

        async def handle(_: Record) -> None:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                raise ValueError("as a driver does whose connection is torn") from None

        stop = ManualStop("products")
        consumer = Consumer(source, handle, retries=Retries(attempts=1), dead_letters=dead)
        task = asyncio.create_task(consumer.run(stop))
        await asyncio.sleep(1.0)
        stop.now(within=1.0)
        await asyncio.sleep(1.0)
        task.cancel("its time is over")
        await asyncio.wait({task}, timeout=2.0)
        assert task.cancelled()
        assert not dead.records
        assert not source.committed
        assert not stop.told(HandlerFailed)

    virtual_time.run(main())


@pytest.mark.parametrize("in_batches", [False, True])
def test_K23_a_record_that_was_in_hand_at_three_deaths_is_set_aside_and_its_neighbours_are_not(
    in_batches: bool,
) -> None:
    async def main() -> None:
        # After a death: all of the last batch are noted once, and the second was begun alone twice more.
        starts = Starts({0: 1, 1: 3, 2: 1})
        source, dead = MemorySource([record(n, key=b"k%d" % n) for n in range(5)]), Kept()
        began: list[list[int]] = []

        async def handle(records: Any) -> None:
            began.append([one.offset for one in ([records] if isinstance(records, Record) else records)])
            await asyncio.sleep(0.01)

        handlers = batches(handle) if in_batches else handle
        consumer = Consumer(source, handlers, concurrency=3, starts=starts, deaths=3, dead_letters=dead)
        await run(consumer, stop_at=5.0)
        assert [(offset, reason.code, reason.tries) for offset, reason in dead.records] == [
            (1, "killed_its_process", 3)
        ]
        assert sorted(offset for offsets in began for offset in offsets) == [0, 2, 3, 4]
        assert source.committed == {ZERO: 5}
        assert not starts.open, "a start that never ended is left behind"
        assert [offsets for how, offsets in starts.log if how == "alone"] == [[0], [1], [2], [3], [4]]

    virtual_time.run(main())


def test_K23_a_stop_is_no_death_and_what_is_known_of_a_suspect_stays() -> None:
    async def main() -> None:
        starts = Starts()
        source = MemorySource([record(n) for n in range(10)])
        await run(Consumer(source, Handler(0.1), starts=starts), stop_at=0.35)
        assert source.committed == {ZERO: 4}
        assert not starts.open
        # Suspects that were not reached before the stop.
        starts = Starts({0: 1, 1: 2})
        source = MemorySource([record(n) for n in range(2)])
        await run(Consumer(source, Handler(10.0), starts=starts), stop_at=source.now() + 1.0)
        assert starts.open == {1: 2}

    virtual_time.run(main())


def test_K23_what_killed_its_process_is_remembered_until_somebody_has_it() -> None:
    async def main() -> None:
        starts, handler, dead = Starts({0: 3}), Handler(), Kept(away_until=50.0)
        source = MemorySource([record(0, key=b"a"), record(1, key=b"b")])
        consumer = Consumer(source, handler, starts=starts, dead_letters=dead)
        known: list[dict[int, int]] = []
        asyncio.get_running_loop().call_at(40.0, lambda: known.append(dict(starts.open)))
        await run(consumer, stop_at=200.0)
        assert known[0][0] >= 3, "a restart now would begin it again"
        assert handler.began == [1]
        assert [offset for offset, _ in dead.records] == [0]
        assert not starts.open
        assert source.committed == {ZERO: 2}

    virtual_time.run(main())


@pytest.mark.parametrize("in_batches", [False, True])
def test_K23_whenever_a_handler_runs_the_starts_of_its_records_are_noted(in_batches: bool) -> None:
    async def main() -> None:
        records = [record(n, key=b"k%d" % (n % 5)) for n in range(20)]
        records[7] = Record("products", 0, 7, b"k2", b"v", came_back(not_before=1_000_005_000))
        starts, source = Starts(), MemorySource(records)
        failed: dict[int, int] = {3: 2, 12: 1}
        away = [1]
        done: list[int] = []

        async def handle_all(given: list[Record]) -> None:
            missing = [one.offset for one in given if not starts.open.get(one.offset)]
            assert not missing, f"a death now would not be counted for {missing}"
            await asyncio.sleep(0.01)
            if away:
                away.pop()
                raise ConnectionResetError
            for one in given:
                if failed.get(one.offset):
                    failed[one.offset] -= 1
                    raise ValueError(one.offset)
            done.extend(one.offset for one in given)

        async def handle(one: Record) -> None:
            await handle_all([one])

        consumer = Consumer(
            source,
            batches(handle_all) if in_batches else handle,
            concurrency=3,
            retry_topic=Kept(refuses=range(20)),  # tried again in place
            starts=starts,
            retries=Retries(backoff=EVERY_HALF_SECOND, never=(AssertionError,)),
            wall=lambda: 1_000_000.0 + source.now(),
        )
        stop = await run(consumer, stop_at=20.0)
        assert {told.error for told in stop.told(HandlerFailed)} == {"ConnectionResetError", "ValueError"}
        assert sorted(done) == list(range(20))
        assert not starts.open
        assert source.committed == {ZERO: 20}

    virtual_time.run(main())


def test_nothing_begins_before_its_start_could_be_noted() -> None:
    async def main() -> None:
        starts, source, handler = Starts(away_until=50.0), MemorySource([record(0)]), Handler()
        await run(Consumer(source, handler, starts=starts), stop_at=100.0)
        assert handler.instants[0] >= 50.0
        assert source.committed == {ZERO: 1}

    virtual_time.run(main())


def test_what_counts_as_an_outage_and_what_does_not() -> None:
    class Psycopg(Exception):
        pass

    class OperationalError(Psycopg):
        sqlstate: str | None = None

    OperationalError.__module__ = "psycopg.errors"

    class Wrapped(Exception):
        orig = PostgresIsAway()

    class UniqueViolation(Exception):
        sqlstate = "23505"

    assert all(
        is_outage(error)
        for error in (
            Unavailable("x"),
            ConnectionResetError(),
            TimeoutError(),
            PostgresIsAway(),
            OperationalError(),
            Wrapped(),
            ExceptionGroup("all", [ConnectionResetError(), PostgresIsAway()]),
        )
    )
    assert not any(
        is_outage(error)
        for error in (
            ValueError(),
            UniqueViolation(),
            FileNotFoundError(2, "no such file"),
            QuiesceError("x"),
            ExceptionGroup("one", [ConnectionResetError(), ValueError()]),
        )
    )
    retries = Retries(counted=(TimeoutError,), outages=(KeyError,))
    assert retries.judge(TimeoutError()) is Verdict.AGAIN
    assert retries.judge(KeyError()) is Verdict.OUTAGE
    assert retries.judge(SettingsError("x")) is Verdict.OUTAGE, "it is mended without touching the records"
    assert retries.judge(QuiesceError("x")) is Verdict.NEVER
    with pytest.raises(SettingsError, match="attempts"):
        Retries(attempts=0)
