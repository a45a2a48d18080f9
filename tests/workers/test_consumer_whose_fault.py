"""Whether a failure is the servers' or the record's own. Neither empties a topic into dead letters, nor stops it."""

import asyncio
from collections.abc import Sequence

import pytest
from scripted_asides import Kept
from scripted_handler import EVERY_HALF_SECOND, run
from scripted_source import MemorySource, record

from quiesce.errors import RecordFailed, SchemaMissing, SettingsError
from quiesce.inbox.record import Record, TopicPartition
from quiesce.testing import virtual_time
from quiesce.workers import Consumer, Retries, batches
from quiesce.workers.retries import TIMEOUTS

ZERO = TopicPartition("products", 0)
RETRIES = Retries(attempts=3, backoff=EVERY_HALF_SECOND)


class Refused(Exception):
    """As a driver raises it: the user may not log in any more, the database is gone, a right is missing."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("refused")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    "error",
    [
        SchemaMissing("no inbox_entry: quiesce inbox schema apply"),
        SettingsError("DATABASE_URL is wrong"),
        Refused("28000"),
        Refused("28P01"),
        Refused("3D000"),
        Refused("42501"),
    ],
)
def test_what_somebody_has_to_mend_is_held_and_said_and_no_record_is_given_up(error: Exception) -> None:
    async def main() -> None:
        source, dead = MemorySource([record(n, key=b"k%d" % n) for n in range(5)]), Kept()
        loop = asyncio.get_running_loop()

        async def handle(_: Record) -> None:
            if loop.time() < 100.0:
                raise error

        consumer = Consumer(source, handle, retries=RETRIES, dead_letters=dead, concurrency=5)
        told: list[str | None] = []
        loop.call_at(60.0, lambda: told.append(consumer.why_not_ready(loop.time())))
        await run(consumer, stop_at=120.0)
        assert not dead.records
        assert source.committed == {ZERO: 5}
        assert told[0] is not None
        assert str(error) in told[0]

    virtual_time.run(main())


@pytest.mark.parametrize("in_batches", [False, True])
def test_a_record_that_always_times_out_is_given_up_and_the_others_go_on(in_batches: bool) -> None:
    async def main() -> None:
        records = [record(n, key=b"k%d" % n) for n in range(8)]
        others = [record(n, 1, key=b"of others") for n in range(60)]
        source, dead = MemorySource([*records, others[0]]), Kept()
        loop = asyncio.get_running_loop()

        def comes(one: Record) -> None:
            source.records = [*source.records, one]

        for at, other in enumerate(others):
            # Meanwhile others come, and are handled: so the servers are there.
            loop.call_at(1.0 + at, comes, other)
        done: list[int] = []
        calls = {3: 0, 5: 0}

        async def handle(one: Record) -> None:
            if one.partition == 1:
                return
            if one.offset in calls:
                calls[one.offset] += 1
                raise TimeoutError
            done.append(one.offset)

        async def handle_all(records: Sequence[Record]) -> None:
            before = list(done)
            try:
                for one in records:
                    await handle(one)
            except TimeoutError:
                done[:] = before
                raise

        handlers = batches(handle_all) if in_batches else handle
        await run(Consumer(source, handlers, retries=RETRIES, dead_letters=dead), stop_at=100.0)
        assert sorted(offset for offset, _ in dead.records) == [3, 5]
        assert sorted(done) == [0, 1, 2, 4, 6, 7]
        assert source.committed[ZERO] == 8
        if not in_batches:
            assert min(calls.values()) > TIMEOUTS, "at first it may be an outage"

    virtual_time.run(main())


@pytest.mark.parametrize("in_batches", [False, True])
def test_K32_an_outage_that_shows_as_timeouts_only_costs_no_record(in_batches: bool) -> None:
    async def main() -> None:
        source, dead = MemorySource([record(n, key=b"k%d" % n) for n in range(8)]), Kept()
        done: list[int] = []

        async def handle(one: Record) -> None:
            if source.now() < 600.0:
                raise TimeoutError
            done.append(one.offset)

        async def handle_all(records: Sequence[Record]) -> None:
            for one in records:
                await handle(one)

        handlers = batches(handle_all) if in_batches else handle
        await run(Consumer(source, handlers, retries=RETRIES, dead_letters=dead), stop_at=700.0)
        assert not dead.records
        assert done == list(range(8)) if not in_batches else sorted(done) == list(range(8))
        assert source.committed == {ZERO: 8}

    virtual_time.run(main())


def test_an_outage_that_a_batch_handler_names_the_record_of_holds_its_key_alone() -> None:
    async def main() -> None:
        source, dead = MemorySource([record(n, key=b"k%d" % (n % 4)) for n in range(8)]), Kept()
        done: list[int] = []

        async def handle(records: Sequence[Record]) -> None:
            for one in records:
                if one.offset == 1:
                    raise RecordFailed(one) from ConnectionRefusedError("its webhook")
            done.extend(one.offset for one in records)

        await run(Consumer(source, batches(handle), retries=RETRIES, dead_letters=dead), stop_at=60.0)
        assert sorted(done) == [0, 2, 3, 4, 6, 7]
        assert source.committed == {ZERO: 1}
        assert not dead.records, "no attempt was counted"

    virtual_time.run(main())


class HasNoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class HasNoState(Exception):
    @property
    def sqlstate(self) -> str:
        raise RuntimeError("no state")

    @property
    def retryable(self) -> bool:
        raise RuntimeError("nobody knows")


@pytest.mark.parametrize("error", [HasNoText("x"), HasNoState("x")])
@pytest.mark.parametrize("how", ["handler", "batches", "decode"])
def test_K22_an_exception_that_cannot_be_read_costs_its_own_record_and_not_the_service(
    how: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        source, dead = MemorySource([record(n, key=b"k%d" % n) for n in range(4)]), Kept()

        def read(one: Record) -> Record:
            if one.offset == 1:
                raise error
            return one

        async def handle(one: Record, *_: Record) -> None:
            read(one)

        async def handle_all(records: Sequence[Record]) -> None:
            for one in records:
                if one.offset == 1:
                    raise RecordFailed(one) from error

        handlers = batches(handle_all) if how == "batches" else handle
        decode = read if how == "decode" else None
        await run(Consumer(source, handlers, retries=RETRIES, dead_letters=dead, decode=decode), stop_at=60.0)
        ((offset, reason),) = dead.records
        assert offset == 1
        assert type(error).__name__ in reason.message
        assert source.committed == {ZERO: 4}

    virtual_time.run(main())
    assert type(error).__name__ in caplog.text


def test_what_ends_the_consumer_is_told_with_the_record(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def handle(one: Record) -> None:
            raise BaseExceptionGroup("torn", [GeneratorExit()])

        with pytest.raises(BaseExceptionGroup):
            await run(Consumer(MemorySource([record(7)]), handle), stop_at=60.0)

    virtual_time.run(main())
    assert "products[0]@7" in caplog.text
