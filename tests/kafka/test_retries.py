"""Retry topics, dead letters and redrives on Apache Kafka, with a consumer that reads them."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from broker import QUICK_GROUP, committed, records
from confluent_kafka import Producer

from quiesce import Budget, Consumer, Service, running, service
from quiesce.errors import SetAsideRefused, Unavailable
from quiesce.inbox.reason import FAILED, Reason
from quiesce.inbox.record import Record, TopicPartition
from quiesce.inbox.redriven import MARK
from quiesce.inbox.retry_headers import not_before, origin, redrives, tries, with_reason
from quiesce.kafka import KafkaDeadLetters, KafkaRetryTopic, KafkaSource
from quiesce.kafka.dead_reader import Shelf
from quiesce.kafka.dead_selection import Selection
from quiesce.kafka.redrive import Plan, _Redrive, redrive
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import once, open_pool
from quiesce.postgres.driver import AnyConnection
from quiesce.testing.contracts.expectations import within
from quiesce.workers import Retries
from quiesce_pytest import MakeTopic

BUDGET = Budget(grace_period=30, prestop=0, http=1, workers=5, producers=10, pools=5, report=1, margin=1)

Handler = Callable[..., Awaitable[object]]


async def until(condition: Callable[[], object], bound: float = 30.0) -> None:
    async with asyncio.timeout(bound):
        while not condition():
            await asyncio.sleep(0.01)


async def append(kafka: str, topic: str, values: Sequence[bytes], key: bytes = b"k", partition: int = 0) -> None:
    def write() -> None:
        producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
        for value in values:
            headers: list[tuple[str, str | bytes | None]] = [("id", b"event-" + value)]
            producer.produce(topic, value, key, partition=partition, headers=headers)
        assert producer.flush(15) == 0

    await asyncio.to_thread(write)


async def read(kafka: str, topic: str) -> list[Record]:
    return await asyncio.to_thread(records, kafka, topic)


def consumer(kafka: str, topics: Sequence[str], group: str, handler: Handler, **terms: Any) -> Any:
    @service("orders", budget=BUDGET)
    async def start(s: Service) -> None:
        source = KafkaSource(kafka, *topics, group=group, settings=QUICK_GROUP)
        s.run(Consumer(source, handler, name="orders", **terms))

    return start


def always(seconds: float) -> Backoff:
    """A wait without jitter."""
    return Backoff(first=seconds, ceiling=seconds, draw=lambda: 1.0)


async def test_K26_K34_every_postponed_record_comes_back_in_order_and_is_the_same_event(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    name, retry = topic("orders", partitions=1), topic("retry", partitions=1)
    handled: list[Record] = []
    failures: dict[bytes | None, int] = defaultdict(int)

    async def fails_twice_on_the_first_two(record: Record) -> None:
        if record.value in (b"0", b"1") and failures[record.value] < 2:
            failures[record.value] += 1
            raise ValueError(f"not yet: {record.value!r}")
        handled.append(record)

    retries = Retries(attempts=5, backoff=always(0.3))
    postpones = KafkaRetryTopic(kafka, retry)
    await append(kafka, name, [b"0", b"1", b"2", b"3"])
    started = consumer(
        kafka, [name, retry], group, fails_twice_on_the_first_two, retries=retries, retry_topic=postpones
    )
    async with running(started) as s:
        await until(lambda: len(handled) == 4)
        assert (await s.stop()).exit_code == 0
    # Those behind them need not wait: that is what a retry topic is for. And two failures of one key are two records.
    assert [one.value for one in handled if one.topic == name] == [b"2", b"3"]
    late = [one for one in handled if one.topic == retry]
    assert [one.value for one in late] == [b"0", b"1"]
    assert [one.event_id for one in late] == ["event-0", "event-1"]
    assert [origin(one) for one in late] == [(name, 0, 0), (name, 0, 1)]
    passes = await read(kafka, retry)
    for value in (b"0", b"1"):
        assert [tries(one) for one in passes if one.value == value] == [1, 2]
    assert len({len(one.headers) for one in passes}) == 1, "headers pile up"
    offsets = await asyncio.to_thread(committed, kafka, group, retry, 1)
    assert offsets == {TopicPartition(retry, 0): 4}


async def test_K27_a_wait_goes_on_with_the_next_owner_from_the_stored_time_and_is_run_by_one(
    kafka: str, topic: MakeTopic, group: str
) -> None:
    name, retry = topic("orders", partitions=1), topic("retry", partitions=1)
    runs: list[tuple[str, float]] = []

    def handler(who: str) -> Handler:
        async def fails_where_it_was_first_read(record: Record) -> None:
            if record.topic == name:
                raise ValueError("not yet")
            runs.append((who, time.time()))

        return fails_where_it_was_first_read

    def member(who: str) -> Any:
        terms = {"retries": Retries(backoff=always(6.0)), "retry_topic": KafkaRetryTopic(kafka, retry)}
        return consumer(kafka, [name, retry], group, handler(who), **terms)

    await append(kafka, name, [b"0"])
    async with running(member("first")) as first:
        async with asyncio.timeout(30):
            while not (waiting := await read(kafka, retry)):
                await asyncio.sleep(0.05)
        due = not_before(waiting[0])
        assert due is not None
        async with running(member("second")) as second:
            # Whoever has it lets go of it while it waits, and it is waited for anew, but not for longer.
            assert (await first.stop()).exit_code == 0
            await until(lambda: runs)
            assert (await second.stop()).exit_code == 0
    ((_, at),) = runs
    assert at >= due, "its time had not come"
    assert await asyncio.to_thread(committed, kafka, group, retry, 1) == {TopicPartition(retry, 0): 1}


async def test_K28_K34_a_redriven_record_runs_and_the_inbox_knows_it_the_second_time(
    kafka: str, topic: MakeTopic, group: str, database: str
) -> None:
    name = topic("orders", partitions=2)
    dead = topic("dead", partitions=1)
    mended = asyncio.Event()
    ran: list[Record] = []

    async def handler(record: Record, connection: AnyConnection) -> None:
        await connection.execute("INSERT INTO effects VALUES ($1)", record.event_id)
        ran.append(record)
        if not mended.is_set():
            raise LookupError("no such product")

    pool_resource = open_pool(database)
    pool = await pool_resource.open()
    await pool.execute("CREATE TABLE effects (event text)")

    def started() -> Any:
        return consumer(
            kafka,
            [name],
            group,
            once(pool, "orders", handler),
            retries=Retries(never=(LookupError,)),
            dead_letters=KafkaDeadLetters(kafka, topic=dead),
        )

    async def redriven() -> int:
        done = 0
        async for progress in redrive(kafka, dead, Selection(), Plan()):
            done = progress.done
        return done

    await append(kafka, name, [b"0"], partition=1)
    async with running(started()) as s:
        async with asyncio.timeout(30):
            while not (letters := await read(kafka, dead)):
                await asyncio.sleep(0.05)
        assert (letters[0].header("quiesce-reason"), letters[0].header("quiesce-error")) == (FAILED, "LookupError")
        assert await pool.fetch("SELECT * FROM effects") == [], "a failure left something behind"
        mended.set()
        assert await redriven() == 1
        await until(lambda: len(ran) == 2)
        assert await redriven() == 0, "it was sent back twice"
        # An operator, or a crash, sends it once more: it is known by the producer's id.
        again = (await read(kafka, name))[-1]
        assert (again.partition, again.event_id, redrives(again)) == (1, "event-0", 1)
        await append(kafka, name, [b"0"], partition=1)
        partition = TopicPartition(name, 1)
        async with asyncio.timeout(30):
            while (await asyncio.to_thread(committed, kafka, group, name, 2)).get(partition) != 3:
                await asyncio.sleep(0.05)
        assert (await s.stop()).exit_code == 0
    assert len(ran) == 2
    assert [row["event"] for row in await pool.fetch("SELECT event FROM effects")] == ["event-0"]
    await pool_resource.close(within(5))


async def test_what_a_retry_topic_cannot_take_is_said_apart(kafka: str, topic: MakeTopic) -> None:
    why = Reason(FAILED, "ValueError", "x" * 5000, 1, "orders")
    small = await KafkaRetryTopic(kafka, topic("small", partitions=1, **{"max.message.bytes": "5000"})).open()
    record = Record("orders", 0, 7, b"k", b"x" * 5000, (("id", b"1"),), 0.0)
    with pytest.raises(SetAsideRefused, match=r"orders\[0\]@7 cannot be postponed.*max.message.bytes"):
        await small.postpone(record, why, time.time(), within(20))
    await small.postpone(Record("orders", 0, 8, b"k", b"x" * 4300, (), 0.0), why, time.time(), within(20))
    await small.close(within(5))
    missing = await KafkaRetryTopic(kafka, lambda source: f"{source}.retry-that-is-not-there").open()
    with pytest.raises(Unavailable, match=r"'orders\.retry-that-is-not-there' does not exist"):
        await missing.postpone(record, why, time.time(), within(20))
    await missing.close(within(5))


async def test_letters_of_one_key_do_not_overtake_one_that_was_not_acked() -> None:
    class Writer:
        """Has no ack for the letters named, whatever comes behind them."""

        def __init__(self, *without_ack: int) -> None:
            self.sent: list[tuple[bytes | None, bytes | None]] = []
            self.marked: list[bytes | None] = []
            self._without_ack = without_ack

        async def know(self, topic: str, deadline: Deadline) -> Any:
            return SimpleNamespace(partitions=1)

        async def write(self, outgoing: Any, deadline: Deadline) -> int:
            if outgoing.topic == "orders.dead":
                self.marked.append(dict(outgoing.headers)[MARK])
                return 99
            self.sent.append((outgoing.key, outgoing.value))
            await asyncio.sleep(0)
            if outgoing.value in [str(one).encode() for one in self._without_ack]:
                raise Unavailable("no ack by the deadline")
            return 0

    def letter(offset: int, key: bytes | None) -> Record:
        read_from = Record("orders", 0, offset, key, str(offset).encode(), (), 0.0)
        headers = with_reason(read_from, Reason(FAILED, "", "", 1, "orders"), "orders.dead")
        return Record("orders.dead", 0, offset, key, read_from.value, headers, 0.0)

    writer = Writer(1)
    work = _Redrive(Plan(), Selection(), cast("Any", None), cast("Any", writer))
    piece = [letter(0, b"b"), letter(1, b"a"), letter(2, None), letter(3, b"a"), letter(4, b"b"), letter(5, None)]
    with pytest.raises(Unavailable):
        await work._deal_with(Shelf("orders.dead", 0, 0, 6), piece)
    assert [value for key, value in writer.sent if key == b"a"] == [b"1"], "3 would stand before 1"
    assert [value for key, value in writer.sent if key == b"b"] == [b"0", b"4"]
    assert writer.marked == [b"0,2,4-5"]
    assert work.progress.done == 4
