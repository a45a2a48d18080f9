"""The dead-letter topic: what arrives there, and what is said when it cannot."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from broker import records
from confluent_kafka import KafkaError
from mock_cluster import INIT_PRODUCER_ID, PRODUCE, MockCluster

from quiesce.errors import SetAsideRefused, SettingsError, Unavailable
from quiesce.inbox.reason import FAILED, Reason
from quiesce.inbox.record import Record
from quiesce.inbox.retry_headers import CUT, MESSAGE, for_redrive, origin
from quiesce.kafka import KafkaDeadLetters, dead_reader, record_writer
from quiesce.kafka.dead_reader import DeadReader
from quiesce.kafka.partitions import partition_of
from quiesce.kafka.topic_answers import ask
from quiesce.testing.contracts.expectations import within
from quiesce.testing.kafka import LocalKafka
from quiesce_pytest import MakeTopic

REASON = Reason(FAILED, "shop.NoSuchProduct", "product 7 is unknown", 5, "orders")
OWN = (("id", b"11"), ("type", b"Placed"), ("empty", None), ("x", b"\xff\x00"), ("x", b"2"))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockCluster]:
    # These brokers do not know the question for a topic's limit: nobody need wait long for that.
    monkeypatch.setattr(record_writer, "_ASK", 0.2)
    with MockCluster() as cluster:
        yield cluster


def record(key: bytes | None = b"k", value: bytes | None = b"v", offset: int = 3, topic: str = "orders") -> Record:
    return Record(topic, 7, offset, key, value, OWN, 1_700_000_000.5)


async def opened(bootstrap: str, topic: str, **terms: Any) -> KafkaDeadLetters:
    """A broker of a machine under load may not answer within the five seconds of one try."""
    letters = KafkaDeadLetters(bootstrap, topic=topic, **terms)
    async with asyncio.timeout(40):
        while True:
            with contextlib.suppress(Unavailable):
                return await letters.open()


async def read(bootstrap: str, topic: str) -> list[Record]:
    return await asyncio.to_thread(records, bootstrap, topic)


async def test_K25_it_arrives_byte_for_byte_in_the_partition_of_its_key(kafka: str, topic: MakeTopic) -> None:
    dead = topic(partitions=2)  # the source has eight
    letters = await KafkaDeadLetters(kafka, topic=dead).open()
    sent = [
        record(b"a", None, 0),
        record(b"a", b"", 1),
        record(b"\xff\x00b", b"\x00\xff", 2),
        record(None, b"v", 3),
        record(b"c", None, 4),
        record(b"", b"empty key", 5),
    ]
    await asyncio.gather(*(letters.set_aside(one, REASON, within(20)) for one in sent))
    found = {origin(one).offset: one for one in await read(kafka, dead)}
    assert len(found) == len(sent)
    for one in sent:
        there = found[one.offset]
        assert (there.key, there.value, there.headers[: len(OWN)]) == (one.key, one.value, OWN)
        assert origin(there) == ("orders", 7, one.offset)
        assert there.header("quiesce-reason") == FAILED
        assert there.header("quiesce-error") == "shop.NoSuchProduct"
        assert there.header(MESSAGE) == "product 7 is unknown"
        assert (there.header("quiesce-tries"), there.header("quiesce-consumer")) == ("5", "orders")
        assert there.timestamp > 1_700_000_001, "its retention would begin when the record was written"
    assert found[0].partition == found[1].partition == partition_of("a", 2)
    assert found[4].partition == partition_of("c", 2)

    # Two consumers that share it give up the same record: both are kept.
    theirs = [Reason(FAILED, "", "", 1, name) for name in ("billing", "shipping")]
    await asyncio.gather(*(letters.set_aside(record(b"a", b"v", 9), why, within(20)) for why in theirs))
    both = [one.header("quiesce-consumer") for one in await read(kafka, dead) if origin(one).offset == 9]
    assert sorted(filter(None, both)) == ["billing", "shipping"]

    # It is redriven and comes back, again and again: no header more.
    passed = found[2]
    for _ in range(3):
        back = Record("orders", 7, 9, passed.key, passed.value, for_redrive(passed, "orders"), 1_700_000_009.0)
        await letters.set_aside(back, REASON, within(20))
        passed = _last_of(await read(kafka, dead), passed.partition)
        assert len(passed.headers) == len(found[2].headers) + 1, "headers pile up"
    assert passed.header("quiesce-redrives") == "3"
    assert not (await letters.close(within(5))).undelivered


def _last_of(found: list[Record], partition: int) -> Record:
    return [one for one in found if one.partition == partition][-1]


async def test_K25_at_the_size_limit_it_arrives_and_says_what_it_lost(
    kafka: str, topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    limit = 20_000
    dead = topic(partitions=3, **{"max.message.bytes": str(limit)})
    letters = await opened(kafka, dead)
    long = Reason(FAILED, "E" * 500, "m" * 5000, 1, "orders")
    fits_when_short = record(b"a", b"x" * (limit - 1100), 0)
    too_large = record(b"a", b"x" * limit, 1)
    headers = Record("orders", 7, 2, b"a", None, (*OWN, *((f"h{n}", b"x" * 1000) for n in range(20))), 0.0)
    large_key = record(b"k" * limit, b"v", 3)
    small = [record(b"a", b"small", n) for n in range(10, 30)]
    sent = [fits_when_short, too_large, headers, large_key, *small]
    await asyncio.gather(*(letters.set_aside(one, long, within(40)) for one in sent))
    found = {origin(one).offset: one for one in await read(kafka, dead)}

    assert found[0].value == fits_when_short.value
    assert len(found[0].header(MESSAGE) or "") <= 100
    assert found[0].header(CUT) is None
    assert (found[1].key, found[1].value) == (b"a", None)
    assert found[1].header(CUT) == f"value of {limit} bytes"
    assert found[1].headers[: len(OWN)] == OWN
    assert found[2].header(CUT) == "23 headers"
    assert found[2].event_id == "11"
    assert (found[3].key, found[3].value) == (None, None)
    assert found[3].header(CUT) == f"value of 1 bytes, 3 headers, key of {limit} bytes"
    assert found[3].partition == partition_of("k" * limit, 3), "it left the partition of its key"
    assert all(found[one.offset].value == b"small" for one in small), "condemned for their neighbours' size"
    assert f"orders[7]@1 went to {dead} without its value of {limit} bytes" in caplog.text
    await letters.close(within(5))

    strict = await opened(kafka, dead, too_large="refuse")
    with pytest.raises(SetAsideRefused, match=r"orders\[7\]@1 cannot be set aside.*max.message.bytes"):
        await strict.set_aside(too_large, long, within(40))
    await strict.set_aside(record(b"a", b"after it", 40), long, within(40))
    await strict.close(within(5))


async def test_a_missing_topic_is_named_and_counts_once_it_is_there(
    kafka: str, local_topics: "Create", caplog: pytest.LogCaptureFixture
) -> None:
    source = f"missing-{uuid4().hex[:8]}"
    named = await KafkaDeadLetters(kafka, topic=f"{source}.dead").open()
    assert f"'{source}.dead' does not exist" in caplog.text, "it is found out only when a record is given up"
    await named.close(within(5))
    letters = await KafkaDeadLetters(kafka).open()
    with pytest.raises(Unavailable, match=rf"'{source}.dead' does not exist. Create it"):
        await letters.set_aside(record(topic=source), REASON, within(10))
    local_topics(f"{source}.dead")
    async with asyncio.timeout(30):
        while True:
            try:
                await letters.set_aside(record(topic=source), REASON, within(10))
                break
            except Unavailable:  # a broker hears of a new topic a moment later
                await asyncio.sleep(0.05)
    assert [one.value for one in await read(kafka, f"{source}.dead")] == [b"v"]
    await letters.close(within(5))


Create = Callable[[str], None]


@pytest.fixture
def local_topics(kafka: str) -> Create:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    def create(name: str) -> None:
        admin = AdminClient({"bootstrap.servers": kafka})
        for future in admin.create_topics([NewTopic(name, 1, 1)]).values():
            future.result(15)

    return create


async def test_it_does_not_go_where_it_came_from(kafka: str) -> None:
    letters = await KafkaDeadLetters(kafka, topic=lambda source: source).open()
    with pytest.raises(SetAsideRefused, match="never end"):
        await letters.set_aside(record(), REASON, within(5))
    await letters.close(within(5))


async def test_an_ack_that_comes_late_makes_no_second_record(cluster: MockCluster) -> None:
    dead = cluster.create_topic("d")
    letters = await KafkaDeadLetters(cluster.bootstrap, topic=dead).open()
    await letters.set_aside(record(offset=1), REASON, within(20))
    cluster.set_round_trip(1.0)
    with pytest.raises(Unavailable, match="no ack by the deadline"):
        await letters.set_aside(record(offset=2), REASON, within(0.3))
    cluster.set_round_trip(0)
    await letters.set_aside(record(offset=2), REASON, within(30))
    assert [origin(one).offset for one in await read(cluster.bootstrap, dead)] == [1, 2]
    await letters.close(within(5))


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka to pause")
async def test_K25_brokers_that_are_silent_are_asked_about_the_topic_until_the_deadline(
    paused_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = f"dead-{uuid4().hex[:8]}"
    paused_kafka.create_topic(dead)
    letters = await KafkaDeadLetters(paused_kafka.bootstrap, topic=lambda source: f"{dead}{source[6:]}").open()
    monkeypatch.setattr(record_writer, "_ASK", 0.2)
    asked, twice, loop = [0], asyncio.Event(), asyncio.get_running_loop()

    def counted(*arguments: Any) -> Any:
        asked[0] += 1
        if asked[0] == 2:
            loop.call_soon_threadsafe(twice.set)
        return ask(*arguments)

    monkeypatch.setattr("quiesce.kafka.record_writer.ask", counted)
    paused_kafka.pause()
    setting_aside = asyncio.create_task(letters.set_aside(record(), REASON, within(40)))
    async with asyncio.timeout(20):
        await asyncio.wait({setting_aside, asyncio.create_task(twice.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert not setting_aside.done(), "one question without an answer was enough"
    monkeypatch.setattr(record_writer, "_ASK", 5.0)
    paused_kafka.resume()
    await setting_aside
    paused_kafka.pause()
    with pytest.raises(Unavailable, match="no broker said by the deadline whether it exists"):
        await letters.set_aside(record(topic="orders-2"), REASON, within(0.3))
    paused_kafka.resume()
    await letters.close(within(5))


async def test_the_ack_of_a_later_record_is_none_for_one_that_was_refused(cluster: MockCluster) -> None:
    dead = cluster.create_topic("d")
    letters = await KafkaDeadLetters(cluster.bootstrap, topic=dead).open()
    # The others are in flight when the first is refused, and taken.
    cluster.set_round_trip(0.2)
    cluster.answer(PRODUCE, KafkaError.NOT_ENOUGH_REPLICAS)
    await asyncio.gather(*(letters.set_aside(record(offset=offset), REASON, within(40)) for offset in range(5)))
    cluster.set_round_trip(0)
    there = [origin(one).offset for one in await read(cluster.bootstrap, dead)]
    assert 0 in there, "it counted as written, and is lost"
    assert there == [1, 2, 3, 4, 0], "librdkafka has learned it: what guards against it can go"
    await letters.close(within(5))


async def test_a_producer_that_broke_is_replaced(cluster: MockCluster) -> None:
    dead = cluster.create_topic("d")
    letters = await KafkaDeadLetters(cluster.bootstrap, topic=dead).open()
    await letters.set_aside(record(offset=1), REASON, within(20))
    cluster.answer(PRODUCE, KafkaError.INVALID_PRODUCER_EPOCH)
    cluster.answer(INIT_PRODUCER_ID, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    async with asyncio.timeout(40):
        while True:
            try:
                await letters.set_aside(record(offset=2), REASON, within(5))
                break
            except Unavailable:
                await asyncio.sleep(0.05)
    assert {origin(one).offset for one in await read(cluster.bootstrap, dead)} == {1, 2}
    await letters.close(within(5))


async def test_what_nobody_answers_is_counted_when_it_is_closed(cluster: MockCluster) -> None:
    dead = cluster.create_topic("d")
    letters = await KafkaDeadLetters(cluster.bootstrap, topic=dead).open()
    await letters.set_aside(record(offset=1), REASON, within(20))
    cluster.set_round_trip(30.0)
    asking = asyncio.create_task(letters.set_aside(record(offset=2), REASON, within(30)))
    await asyncio.sleep(0)
    closed = await letters.close(within(0.5))
    assert (closed.forced, closed.undelivered) == (True, 1)
    with pytest.raises(Unavailable):
        await asking
    assert not (await letters.close(within(0.5))).forced, "a second close"
    cluster.set_round_trip(0)


def test_bad_settings_are_named() -> None:
    with pytest.raises(SettingsError, match="takes cut or refuse"):
        KafkaDeadLetters("localhost:1", too_large="drop")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="takes a topic's name"):
        KafkaDeadLetters("localhost:1", topic="")
    with pytest.raises(SettingsError, match="'acks'"):
        KafkaDeadLetters({"bootstrap.servers": "localhost:1", "acks": "1"})


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka with users")
async def test_a_missing_right_is_told_apart_from_a_missing_topic(
    own_kafka: Callable[..., LocalKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = own_kafka(users={"writer": "w-secret"})
    broker.create_topic("guarded")
    broker.create_topic("open")
    broker.address.allow("writer", "write", "open")
    broker.address.allow("writer", "describe", "guarded")
    settings = {
        "bootstrap.servers": broker.sasl_bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "writer",
        "sasl.password": "w-secret",
    }
    letters = await KafkaDeadLetters(settings, topic=lambda source: source.removeprefix("from-")).open()
    with pytest.raises(Unavailable, match=r"'guarded' may not be written to.*AUTHORIZATION"):
        await letters.set_aside(record(topic="from-guarded"), REASON, within(20))
    await letters.set_aside(record(topic="from-open"), REASON, within(20))
    broker.address.allow("writer", "write", "guarded")
    async with asyncio.timeout(30):
        while True:
            try:
                await letters.set_aside(record(topic="from-guarded"), REASON, within(20))
                break
            except Unavailable:
                await asyncio.sleep(0.05)
    await letters.close(within(5))

    # To look at them takes READ on the topic alone.
    def look(topic: str) -> list[Record]:
        with DeadReader(settings, topic) as reader:
            return [letter for shelf in reader.shelves() for page in reader.letters(shelf) for letter in page]

    broker.create_topic("hidden")
    with pytest.raises(SettingsError, match="topic 'hidden': does not exist, or may not be seen"):
        await asyncio.to_thread(look, "hidden")
    monkeypatch.setattr(dead_reader, "_GROUP", 0.5)
    with pytest.raises(SettingsError, match=r"topic 'open': may not be read.*READ"):
        await asyncio.to_thread(look, "open")
    broker.address.allow("writer", "read", "open")
    async with asyncio.timeout(30):
        while True:
            try:
                (letter,) = await asyncio.to_thread(look, "open")
                break
            except SettingsError:
                await asyncio.sleep(0.05)
    assert letter.value == b"v"
