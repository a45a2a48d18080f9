"""A handler that is cancelled at its bound: its record's own fault, or that of a server that hangs."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from scripted_asides import Kept, Starts
from scripted_handler import EVERY_HALF_SECOND, run
from scripted_source import MemorySource, record

from quiesce.errors import Unavailable
from quiesce.inbox.record import Record, TopicPartition
from quiesce.testing import virtual_time
from quiesce.workers import Consumer, Retries, batches
from quiesce.workers.retries import TIMEOUTS

ZERO = TopicPartition("products", 0)
ONCE = Retries(attempts=1, backoff=EVERY_HALF_SECOND)


class Hangs:
    """Hangs for those offsets for ever, and for all others until the server goes on. Counts the calls."""

    def __init__(self, *offsets: int, until: float = 0.0) -> None:
        self.offsets = offsets
        self.until = until
        self.calls = Counter[int]()
        self.done: list[int] = []

    def is_frozen(self) -> bool:
        return asyncio.get_running_loop().time() < self.until

    async def probe(self) -> None:
        if self.is_frozen():
            await asyncio.Event().wait()

    async def one(self, one: Record) -> None:
        await self.many([one])

    async def many(self, records: Sequence[Record]) -> None:
        for one in records:
            self.calls[one.offset] += 1
            if one.offset in self.offsets or self.is_frozen():
                await asyncio.Event().wait()
        self.done += [one.offset for one in records]


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("partitions", [1, 2])
def test_K32_a_server_that_hangs_past_the_bound_again_and_again_costs_no_record(
    in_batches: bool, partitions: int
) -> None:
    async def main() -> None:
        records = [record(n, n % partitions, key=b"k%d" % n) for n in range(8)]
        source, dead, hangs = MemorySource(records), Kept(), Hangs(until=1000.0)
        handler = batches(hangs.many) if in_batches else hangs.one
        consumer = Consumer(source, handler, handler_bound=5.0, concurrency=2, retries=ONCE, dead_letters=dead)
        await run(consumer, stop_at=1200.0)
        assert not dead.records
        assert sorted(hangs.done) == list(range(8))

    virtual_time.run(main())


def test_K32_a_probe_that_is_not_answered_makes_it_an_outage_for_as_long_as_it_lasts() -> None:
    async def main() -> None:
        source, dead, hangs = MemorySource([record(0)]), Kept(), Hangs(until=10_000.0)
        consumer = Consumer(
            source, hangs.one, handler_bound=5.0, retries=ONCE, probe=hangs.probe, dead_letters=dead, ready_within=30.0
        )
        told: list[str | None] = []
        asyncio.get_running_loop().call_at(100.0, lambda: told.append(consumer.why_not_ready(100.0)))
        await run(consumer, stop_at=10_100.0)
        assert not dead.records
        assert hangs.calls[0] > 10 * TIMEOUTS
        assert source.committed == {ZERO: 1}
        assert "handler_bound" in (told[0] or "")

    virtual_time.run(main())


@pytest.mark.parametrize("raises", [False, True])
def test_a_probe_that_is_answered_tells_that_it_was_the_record(raises: bool) -> None:
    async def main() -> None:
        source, dead, hangs = MemorySource([record(0)]), Kept(), Hangs(0)

        async def raising(one: Record) -> None:
            hangs.calls[one.offset] += 1
            raise TimeoutError

        handler = raising if raises else hangs.one
        consumer = Consumer(
            source, handler, handler_bound=5.0, retries=ONCE, probe=hangs.probe, dead_letters=dead, in_flight=1
        )
        await run(consumer, stop_at=60.0)
        assert [offset for offset, _ in dead.records] == [0]
        assert hangs.calls[0] == 2, "the first time the outage may have been over when the probe was sent"

    virtual_time.run(main())


def test_a_probe_that_raises_is_an_outage() -> None:
    async def main() -> None:
        source, dead, hangs = MemorySource([record(0)]), Kept(), Hangs(0)

        async def probe() -> None:
            raise OSError("no route to host")

        consumer = Consumer(source, hangs.one, handler_bound=5.0, retries=ONCE, probe=probe, dead_letters=dead)
        await run(consumer, stop_at=300.0)
        assert not dead.records

    virtual_time.run(main())


def test_the_database_that_counts_starts_is_asked_where_there_is_no_probe() -> None:
    async def main() -> None:
        class Silent(Starts):
            async def probe(self) -> None:
                if hangs.is_frozen():
                    raise Unavailable("the database does not answer")

        source, dead, hangs = MemorySource([record(0)]), Kept(), Hangs(until=1000.0)
        consumer = Consumer(source, hangs.one, handler_bound=5.0, retries=ONCE, starts=Silent(), dead_letters=dead)
        await run(consumer, stop_at=1100.0)
        assert not dead.records
        assert hangs.calls[0] > 3 * TIMEOUTS
        assert source.committed == {ZERO: 1}

    virtual_time.run(main())


@pytest.mark.parametrize("in_batches", [False, True])
def test_K17_records_whose_handler_always_hangs_are_set_aside_and_the_others_go_on(in_batches: bool) -> None:
    async def main() -> None:
        records = [record(n, key=b"k%d" % n) for n in range(8)]
        source, dead, hangs = MemorySource(records), Kept(), Hangs(3, 5)
        handler = batches(hangs.many) if in_batches else hangs.one
        retries = Retries(attempts=3, backoff=EVERY_HALF_SECOND)
        consumer = Consumer(source, handler, handler_bound=5.0, retries=retries, dead_letters=dead)
        await run(consumer, stop_at=300.0)
        assert sorted(offset for offset, _ in dead.records) == [3, 5]
        assert sorted(hangs.done) == [0, 1, 2, 4, 6, 7]
        assert source.committed == {ZERO: 8}

    virtual_time.run(main())


def test_K17_one_that_always_hangs_is_set_aside_though_nothing_else_comes_and_nobody_can_be_asked() -> None:
    async def main() -> None:
        source, dead, hangs = MemorySource([record(0)]), Kept(), Hangs(0)
        consumer = Consumer(source, hangs.one, handler_bound=5.0, retries=ONCE, dead_letters=dead)
        await run(consumer, stop_at=300.0)
        assert [offset for offset, _ in dead.records] == [0]
        assert hangs.calls[0] == TIMEOUTS + 1
        assert source.committed == {ZERO: 1}

    virtual_time.run(main())


def test_a_handler_that_needs_a_second_and_a_third_cancel_gets_them_and_does_not_end_the_consumer() -> None:
    async def main() -> None:
        source, dead = MemorySource([record(0, key=b"a"), record(1, key=b"b")]), Kept()
        cancelled: list[float] = []

        async def handle(one: Record) -> None:
            if one.offset == 1:
                return
            # As a driver whose server hangs: the statement, the rollback, and then giving the connection back.
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(source.now())
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.append(source.now())
                    await asyncio.Event().wait()

        consumer = Consumer(source, handle, handler_bound=5.0, retries=ONCE, dead_letters=dead)
        await run(consumer, stop_at=60.0)
        assert cancelled[:2] == [pytest.approx(5.0, abs=0.1), pytest.approx(8.0, abs=0.1)]
        assert [offset for offset, _ in dead.records] == [0]
        assert source.committed == {ZERO: 2}

    virtual_time.run(main())
