"""What the publisher promises beyond its contract, on Apache Kafka."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from uuid import UUID, uuid4

import pytest
from broker import records, set_topic

from quiesce.errors import Unavailable
from quiesce.kafka import KafkaPublisher
from quiesce.outbox.event import ClaimedEvent, PlainEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.testing.contracts.publisher import event, within
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.kafka_address import KafkaAddress
from quiesce_pytest import MakeTopic


@pytest.fixture
async def publisher(kafka: str) -> AsyncIterator[KafkaPublisher]:
    publisher = await KafkaPublisher(kafka).open()
    yield publisher
    await publisher.close(within(5))


def low_topic(topic: MakeTopic) -> str:
    return topic("low", 3, **{"max.message.bytes": "3000"})


async def publish(publisher: KafkaPublisher, *events: ClaimedEvent) -> list[Outcome]:
    async with asyncio.timeout(15):
        outcomes = await publisher.publish(events)
    return [outcomes[one.id] for one in events]


async def test_no_broker_is_told_at_once_and_leaves_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        publisher = KafkaPublisher(address)
        began = time.monotonic()
        with pytest.raises(Unavailable, match=f"{address}.*Connection refused"):
            await publisher.open()
        assert time.monotonic() - began < 3
        assert not await publisher.reachable(within(1))


async def test_a_key_goes_where_the_java_client_puts_it(
    kafka: str, topic: MakeTopic, publisher: KafkaPublisher
) -> None:
    # murmur2 of these keys as Kafka's own tests have it.
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "abc": 479470107}
    name = topic(partitions=7)
    await publish(publisher, *(event(name, key) for key in hashes))
    for record in await asyncio.to_thread(records, kafka, name):
        assert record.key is not None
        assert record.partition == (hashes[record.key.decode()] & 0x7FFFFFFF) % 7


async def test_O12_a_full_queue_is_waited_for(kafka: str, topic: MakeTopic) -> None:
    name = topic(partitions=1)
    publisher = await KafkaPublisher(kafka, settings={"queue.buffering.max.messages": 50}).open()
    pages = [[event(name) for _ in range(500)] for _ in range(4)]
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(*(publisher.publish(page) for page in pages))
    assert all(set(one.values()) == {DISPATCHED} and len(one) == 500 for one in outcomes)
    arrived = [record.event_id for record in await asyncio.to_thread(records, kafka, name)]
    assert arrived == [str(one.id) for page in pages for one in page]
    await publisher.close(within(5))


async def test_the_loop_turns_while_a_large_page_is_handed_over(topic: MakeTopic, publisher: KafkaPublisher) -> None:
    name = topic()
    await publish(publisher, event(name))
    handle = publisher._handle
    assert handle is not None
    most = 0

    async def turn() -> None:
        nonlocal most
        before = handle.queued()
        while True:
            await asyncio.sleep(0)
            most = max(most, handle.queued() - before)
            before = handle.queued()

    page = [event(name) for _ in range(10_000)]
    turning = asyncio.ensure_future(turn())
    await asyncio.sleep(0)
    async with asyncio.timeout(15):
        assert len(await publisher.publish(page)) == 10_000
    turning.cancel()
    # No clock decides: how many were handed over between two turns of the loop.
    assert 0 < most <= 500, "the loop stood still while the events were handed over"


async def test_O7_small_events_are_not_condemned_for_a_topic_with_a_low_limit(
    kafka: str, topic: MakeTopic, publisher: KafkaPublisher
) -> None:
    """A broker refuses a batch as a whole, so batches must not be larger than the topic takes."""
    usual, low = topic(), low_topic(topic)
    usual_page = [event(usual) for _ in range(500)]
    assert set(await publish(publisher, *(event(usual) for _ in range(100)))) == {DISPATCHED}
    small = [event(low, str(n), b"x" * (n * 5)) for n in range(500)]
    under_way = asyncio.ensure_future(publisher.publish(usual_page))
    assert set(await publish(publisher, *small)) == {DISPATCHED}
    assert set((await under_way).values()) == {DISPATCHED}
    (refused,) = await publish(publisher, event(low, payload=b"x" * 3000))
    assert isinstance(refused, Dead)
    assert "3,000" in refused.reason


async def test_O7_a_topic_that_takes_less_than_writers_may_enqueue_is_told_of_once(
    topic: MakeTopic, publisher: KafkaPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    low, usual = low_topic(topic), topic()
    for _ in range(2):
        assert set(await publish(publisher, event(low), event(usual))) == {DISPATCHED}
    (told,) = [record.getMessage() for record in caplog.records if "writers may enqueue" in record.getMessage()]
    assert told.startswith(f"topic '{low}' takes messages of up to 3,000 bytes (max.message.bytes)")
    assert "Raise it to 900,512, or enqueue with a smaller max_event_bytes" in told


async def test_O7_a_limit_that_was_lowered_condemns_nothing_that_fits(
    kafka: str, topic: MakeTopic, publisher: KafkaPublisher
) -> None:
    name = topic(partitions=1)
    assert await publish(publisher, event(name)) == [DISPATCHED]
    await asyncio.to_thread(set_topic, kafka, name, "max.message.bytes", "5000")
    events = [event(name, payload=b"x" * 1000) for _ in range(50)]
    outcomes: dict[UUID, Outcome] = {}
    async with asyncio.timeout(30):
        while len(outcomes) < len(events):
            left = [one for one in events if one.id not in outcomes]
            outcomes.update(await publisher.publish(left))
            if len(outcomes) < len(events):
                await publisher.discard(within(2))
    assert set(outcomes.values()) == {DISPATCHED}
    arrived = [record.event_id for record in await asyncio.to_thread(records, kafka, name)]
    assert arrived[1:] == [str(one.id) for one in events]


async def test_a_limit_that_was_raised_counts_at_once(kafka: str, topic: MakeTopic, publisher: KafkaPublisher) -> None:
    name = topic(partitions=1)
    (refused,) = await publish(publisher, event(name, payload=b"x" * 1_500_000))
    assert isinstance(refused, Dead)
    await asyncio.to_thread(set_topic, kafka, name, "max.message.bytes", "2000000")
    assert await publish(publisher, event(name, payload=b"x" * 1_500_000)) == [DISPATCHED]


async def test_O7_headers_count_towards_the_size(topic: MakeTopic, publisher: KafkaPublisher) -> None:
    name = low_topic(topic)
    large, fine = event(name, payload=b"x", blob="y" * 3000), event(name, payload=b"x")
    dead, dispatched = await publish(publisher, large, fine)
    assert isinstance(dead, Dead)
    assert dispatched == DISPATCHED


async def test_a_topic_that_comes_later_is_found(kafka: str, publisher: KafkaPublisher) -> None:
    name = f"later-{uuid4().hex[:8]}"
    first = event(name)
    (waiting,) = await publish(publisher, first)
    assert isinstance(waiting, Retry)
    assert "UNKNOWN_TOPIC_OR_PART" in waiting.reason
    await asyncio.to_thread(KafkaAddress(kafka).create_topic, name, 1)
    async with asyncio.timeout(10):
        while await publish(publisher, first) != [DISPATCHED]:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("name", ["", "two words", "ü", "x" * 250, "."])
async def test_what_cannot_be_a_topic_is_dead(topic: MakeTopic, publisher: KafkaPublisher, name: str) -> None:
    dead, fine = await publish(publisher, event(name), event(topic()))
    assert isinstance(dead, Dead)
    assert fine == DISPATCHED


async def test_user_headers_cannot_replace_ours(kafka: str, topic: MakeTopic, publisher: KafkaPublisher) -> None:
    name = topic(partitions=1)
    forged = PlainEvent(0, uuid4(), "k", name, "Happened", b"", {"id": "forged", "type": "forged"})
    await publish(publisher, forged)
    (record,) = await asyncio.to_thread(records, kafka, name)
    assert record.headers == (("id", str(forged.id).encode()), ("type", b"Happened"))


@pytest.mark.xdist_group("kafka to kill")
async def test_O9_a_killed_broker_acks_nothing_that_is_not_on_the_topic(
    own_kafka: Callable[[], LocalKafka],
) -> None:
    broker = own_kafka()
    broker.create_topic("t", 3)
    publisher = await KafkaPublisher(broker.bootstrap).open()
    acked: list[UUID] = []

    async def keep_publishing() -> None:
        while True:
            outcomes = await publisher.publish([event("t", str(n)) for n in range(200)])
            acked.extend(one for one, outcome in outcomes.items() if outcome == DISPATCHED)
            if len(outcomes) < 200:
                return

    publishing = asyncio.ensure_future(keep_publishing())
    async with asyncio.timeout(20):
        while len(acked) < 2000:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(broker.kill)
    before = len(acked)
    assert not await publisher.reachable(within(0.5))
    began = time.monotonic()
    await publisher.discard(within(5))
    assert time.monotonic() - began < 1
    async with asyncio.timeout(1):
        await publishing
    assert acked
    assert len(acked) >= before
    # Published while it is away, acked by itself once it is back: nothing times out in the client.
    late = event("t")
    waiting = asyncio.ensure_future(publisher.publish([late]))
    await asyncio.to_thread(broker.start)
    async with asyncio.timeout(20):
        assert await waiting == {late.id: DISPATCHED}
    arrived = {record.event_id for record in await asyncio.to_thread(records, broker.bootstrap, "t")}
    assert {str(one) for one in acked} <= arrived
    await publisher.close(within(5))


async def test_O6_what_is_in_flight_behind_a_refused_batch_does_not_overtake_it(kafka: str, topic: MakeTopic) -> None:
    """The topic refuses everything for a while, in the middle of it: then nothing may be missing, nor first seen before
    an earlier event of its key."""
    name = topic(partitions=1)
    small = {"batch.num.messages": 5, "linger.ms": 0}
    publisher = await KafkaPublisher(kafka, settings=small).open()
    events: list[ClaimedEvent] = []
    refused: list[str] = []
    over = asyncio.Event()

    def page() -> list[ClaimedEvent]:
        new = [event(name, f"key {n % 5}") for n in range(len(events), len(events) + 100)]
        events.extend(new)
        return new

    async def as_a_relay_does() -> None:
        left: list[list[ClaimedEvent]] = []
        while left or not over.is_set():
            while len(left) < 3 and not over.is_set():
                left.append(page())
            answers = await asyncio.gather(*(publisher.publish(page) for page in left))
            if any(len(answer) < len(page) for answer, page in zip(answers, left, strict=True)):
                await publisher.discard(within(2))
            done = {one for answer in answers for one, outcome in answer.items() if outcome == DISPATCHED}
            # Of a batch with several wrong records the client says INVALID_RECORD.
            refused.extend(one.reason for answer in answers for one in answer.values() if isinstance(one, Retry | Dead))
            left = [page for page in ([e for e in page if e.id not in done] for page in left) if page]

    async def refuse_for_a_while() -> None:
        while not events:
            await asyncio.sleep(0.01)
        # No record is young enough.
        await asyncio.to_thread(set_topic, kafka, name, "message.timestamp.before.max.ms", "0")
        while not refused:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(set_topic, kafka, name, "message.timestamp.before.max.ms", "9223372036854775807")
        over.set()

    async with asyncio.timeout(40), asyncio.TaskGroup() as group:
        group.create_task(as_a_relay_does())
        group.create_task(refuse_for_a_while())
    await publisher.close(within(5))
    assert refused, "nothing was refused, so this shows nothing"
    assert all("INVALID_" in reason for reason in refused)
    number = {str(one.id): n for n, one in enumerate(events)}
    arrived = [number[str(record.event_id)] for record in await asyncio.to_thread(records, kafka, name)]
    firsts = list(dict.fromkeys(arrived))
    assert sorted(firsts) == list(range(len(events)))
    for key in range(5):
        of_key = [n for n in firsts if n % 5 == key]
        assert of_key == sorted(of_key)
