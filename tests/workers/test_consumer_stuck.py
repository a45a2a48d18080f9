"""Handlers that are cancelled and do not end as they should: what counts, what does not, and what ends the process."""

import asyncio
import contextlib
import time

import pytest
from scripted_asides import Kept
from scripted_handler import EVERY_HALF_SECOND, Handler, run
from scripted_source import MemorySource, record

from quiesce.errors import HandlerStuck, Unavailable
from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Record, TopicPartition
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import RecordStarts
from quiesce.testing import virtual_time
from quiesce.testing.manual_stop import ManualStop
from quiesce.testing.memory_starts import MemoryStarts, StartsLog
from quiesce.workers import Consumer, Retries

ZERO = TopicPartition("products", 0)


def test_K11_a_handler_that_swallows_its_cancel_at_its_bound_and_returns_has_failed() -> None:
    async def main() -> None:
        source, dead = MemorySource([record(n, key=b"%d" % n) for n in range(3)]), Kept()
        done: list[int] = []

        async def handle(record: Record) -> None:
            try:
                await asyncio.sleep(1e6 if record.offset == 1 else 0.01)
                done.append(record.offset)
            except asyncio.CancelledError:
                pass

        consumer = Consumer(source, handle, handler_bound=1.0, retries=Retries(attempts=2), dead_letters=dead)
        await run(consumer, stop_at=60.0)
        assert [offset for offset, _ in dead.records] == [1]
        assert "handler_bound" in dead.records[0][1].message
        assert done == [0, 2]
        assert source.committed == {ZERO: 3}

    virtual_time.run(main())


def test_K11_a_handler_that_swallows_its_cancel_as_its_partition_goes_and_returns_is_not_committed() -> None:
    async def main() -> None:
        source = MemorySource([record(n) for n in range(3)], revoke_bound=2.0)

        async def handle(record: Record) -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1e6 if record.offset == 1 else 0.01)

        asyncio.get_running_loop().call_at(1.0, source.revoke, ZERO)
        await run(Consumer(source, handle), stop_at=20.0)
        assert source.committed == {ZERO: 1}

    virtual_time.run(main())


class Slow(Kept):
    """Answers as late as it may, the first time that it is away."""

    async def set_aside(self, record: Record, reason: Reason, deadline: Deadline) -> None:
        now = asyncio.get_running_loop().time()
        if now < self.away_until:
            await asyncio.sleep(deadline.remaining(now))
            raise Unavailable("no broker answers")
        await super().set_aside(record, reason, deadline)

    def __init__(self, away_until: float) -> None:
        super().__init__()
        self.away_until = away_until


def test_a_handler_that_ended_at_its_bound_is_not_stuck_while_its_record_is_being_set_aside() -> None:
    async def main() -> None:
        source, dead = MemorySource([record(0), record(1)]), Slow(away_until=20.0)
        handler, retries = Handler(1e6), Retries(attempts=1, backoff=EVERY_HALF_SECOND, counted=(TimeoutError,))
        consumer = Consumer(source, handler, handler_bound=1.0, retries=retries, dead_letters=dead)
        await run(consumer, stop_at=200.0)
        assert [offset for offset, _ in dead.records] == [0, 1]
        assert source.committed == {ZERO: 2}

    virtual_time.run(main())


class Never:
    """A handler that no cancel ends, until it is released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.began: list[int] = []

    async def __call__(self, record: Record) -> None:
        self.began.append(record.offset)
        while record.offset == 1 and not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                continue

    async def over(self) -> None:
        self.release.set()
        await asyncio.sleep(0.05)


def test_K23_a_record_whose_handler_cannot_be_ended_is_told_apart_by_its_deaths() -> None:
    async def main() -> None:
        log, dead = StartsLog(), Kept()
        committed: dict[TopicPartition, int] = {}
        for _ in range(3):
            source, handler = MemorySource([record(n) for n in range(3)]), Never()
            source.committed = committed
            # The next process begins where the last one committed.
            source.rebalance()
            consumer = Consumer(
                source, handler, handler_bound=0.3, starts=MemoryStarts(log), deaths=3, dead_letters=dead
            )
            with pytest.raises(HandlerStuck):
                await run(consumer, stop_at=source.now() + 60.0)
            await handler.over()
            assert 2 not in handler.began
            committed = source.committed
        source, handler = MemorySource([record(n) for n in range(3)]), Never()
        source.committed = committed
        source.rebalance()
        consumer = Consumer(source, handler, starts=MemoryStarts(log), deaths=3, dead_letters=dead)
        await run(consumer, stop_at=source.now() + 60.0)
        assert [offset for offset, _ in dead.records] == [1]
        assert handler.began == [2]
        assert source.committed == {ZERO: 3}

    virtual_time.run(main())


async def test_K23_the_close_of_the_starts_keeps_the_death_of_a_record_whose_handler_cannot_be_ended(
    database: str,
) -> None:
    starts, handler = await RecordStarts(database).open(), Never()
    source = MemorySource([record(0, key=b"a"), record(1, key=b"b")])
    consumer = Consumer(source, handler, name="c", concurrency=2, handler_bound=0.1, starts=starts)
    with pytest.raises(HandlerStuck):
        await consumer.run(ManualStop("c"))
    await starts.close(Deadline(time.monotonic() + 10.0))
    await handler.over()
    successor = await RecordStarts(database).open()
    assert await successor.began("c", [record(0), record(1), record(2)]) == [0, 1, 0]
    await successor.close(Deadline(time.monotonic() + 10.0))
