"""What a publisher makes of a broker's refusals, one by one."""

import asyncio
from collections.abc import Iterator, Mapping
from uuid import UUID

import pytest
from broker import records
from confluent_kafka import KafkaError
from mock_cluster import INIT_PRODUCER_ID, PRODUCE, MockCluster

from quiesce.kafka import KafkaPublisher, topics
from quiesce.kafka.partitions import partition_of
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.testing.contracts.publisher import event, ids, within


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockCluster]:
    # These brokers do not know the question for a topic's limit: the publisher need not wait long for that.
    monkeypatch.setattr(topics, "_ASK", 0.2)
    with MockCluster() as cluster:
        yield cluster


async def outcomes(publisher: KafkaPublisher, topic: str, count: int = 1) -> list[Outcome]:
    async with asyncio.timeout(15):
        return list((await publisher.publish([event(topic) for _ in range(count)])).values())


@pytest.mark.parametrize("name", ["INVALID_RECORD", "INVALID_MSG_SIZE"])
async def test_O7_for_good_is_dead_at_the_first_try_and_says_why(cluster: MockCluster, name: str) -> None:
    topic = cluster.create_topic("t")
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    cluster.answer(PRODUCE, getattr(KafkaError, name))
    (outcome,) = await outcomes(publisher, topic)
    assert isinstance(outcome, Dead)
    assert name in outcome.reason
    await publisher.discard(within(1))
    assert await outcomes(publisher, topic) == [DISPATCHED]
    await publisher.close(within(1))


async def test_for_now_is_a_retry_and_says_why(cluster: MockCluster) -> None:
    topic = cluster.create_topic("t")
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    cluster.answer(PRODUCE, KafkaError.POLICY_VIOLATION)
    (outcome,) = await outcomes(publisher, topic)
    assert isinstance(outcome, Retry)
    assert "POLICY_VIOLATION" in outcome.reason
    await publisher.discard(within(1))
    assert await outcomes(publisher, topic) == [DISPATCHED]
    await publisher.close(within(1))


async def test_O24_slow_answers_beside_a_partition_without_a_leader_cost_no_producer(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was sent to that partition, so that nothing sent waits for its leader."""
    topic = cluster.create_topic("t", 3)
    cluster.set_leader(topic, 1, -1)
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    keys = [f"key {n}" for n in range(30)]
    lost = {key for key in keys if partition_of(key, 3) == 1}
    page = [event(topic, key) for key in keys]
    async with asyncio.timeout(10):
        answers = await publisher.publish(page)
    assert {one.aggregate_id for one in page if answers[one.id] != DISPATCHED} == lost
    cluster.set_round_trip(1.3)  # answers are asked after from one second on
    page = [event(topic, key) for key in keys]
    async with asyncio.timeout(15):
        answers = await publisher.publish(page)
    assert {one.aggregate_id for one in page if answers[one.id] != DISPATCHED} == lost
    assert "will be replaced" not in caplog.text
    cluster.set_round_trip(0)
    await publisher.close(within(2))


async def test_O24_a_forbidden_topic_is_let_alone_while_others_flow(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """These brokers do not tell our rights: the topic is tried again after a pause, at the price of a producer."""
    caplog.set_level("INFO")
    forbidden, fine = cluster.create_topic("forbidden"), cluster.create_topic("fine")
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    cluster.answer(PRODUCE, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    (outcome,) = await outcomes(publisher, forbidden)
    assert isinstance(outcome, Retry)
    assert "TOPIC_AUTHORIZATION_FAILED" in outcome.reason
    await publisher.discard(within(1))
    one, two = event(forbidden), event(fine)
    answers = await publisher.publish([one, two])
    assert isinstance(answers[one.id], Retry), "it was sent, and would have cost another producer"
    assert answers[two.id] == DISPATCHED
    # Granted since: the topic is asked about, and tried.
    async with asyncio.timeout(10):
        while await outcomes(publisher, forbidden) != [DISPATCHED]:
            await asyncio.sleep(0.1)
    assert "its events wait, others flow: TOPIC_AUTHORIZATION_FAILED" in caplog.text
    assert "takes events again" in caplog.text
    await publisher.close(within(1))


@pytest.mark.parametrize(
    "name", ["NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT", "NOT_LEADER_FOR_PARTITION", "KAFKA_STORAGE_ERROR"]
)
async def test_what_passes_is_waited_out(cluster: MockCluster, name: str) -> None:
    topic = cluster.create_topic("t")
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    cluster.answer(PRODUCE, *[getattr(KafkaError, name)] * 3)
    assert await outcomes(publisher, topic, 3) == [DISPATCHED] * 3
    await publisher.close(within(1))


@pytest.mark.parametrize(
    ("request_kind", "name"),
    [
        (INIT_PRODUCER_ID, "CLUSTER_AUTHORIZATION_FAILED"),
        (PRODUCE, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (PRODUCE, "INVALID_PRODUCER_EPOCH"),
    ],
)
async def test_a_broken_producer_says_nothing_until_it_is_discarded(
    cluster: MockCluster, request_kind: int, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = cluster.create_topic("t")
    cluster.answer(request_kind, getattr(KafkaError, name))
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    assert await outcomes(publisher, topic, 3) == []
    assert name in caplog.text or KafkaError(getattr(KafkaError, name)).str() in caplog.text
    # What comes behind a gap waits for the discard.
    assert await outcomes(publisher, topic, 3) == []
    await publisher.discard(within(2))
    assert await outcomes(publisher, topic, 3) == [DISPATCHED] * 3
    await publisher.close(within(1))


async def test_O7_a_refused_batch_condemns_no_event_in_it(cluster: MockCluster) -> None:
    """The brokers do not tell their limit here: each event is sent alone until one is refused alone."""
    topic = cluster.create_topic("t")
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    cluster.answer(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
    assert await outcomes(publisher, topic, 3) == []
    await publisher.discard(within(2))
    cluster.answer(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
    first, *others = await outcomes(publisher, topic, 3)
    assert isinstance(first, Dead)
    assert "MSG_SIZE_TOO_LARGE" in first.reason
    assert not others, "nothing goes before the policy for the first has been applied"
    await publisher.discard(within(2))
    assert await outcomes(publisher, topic, 2) == [DISPATCHED] * 2
    await publisher.close(within(1))


async def test_an_event_that_its_headers_make_too_large_is_found_at_once(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It was larger than a batch may be, and so alone in its own."""
    topic = cluster.create_topic("t")
    publisher = await KafkaPublisher(cluster.bootstrap, settings={"batch.size": 1000}).open()
    cluster.answer(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
    large = event(topic, trace="x" * 2000)
    answers = await publisher.publish([large])
    assert isinstance(answers[large.id], Dead)
    await publisher.discard(within(2))
    assert await outcomes(publisher, topic, 3) == [DISPATCHED] * 3
    assert "each message is sent alone" not in caplog.text
    await publisher.close(within(1))


async def as_a_relay_does(publisher: KafkaPublisher, *pages: list[ClaimedEvent]) -> list[Outcome]:
    """Publishes pages at once, discards, and offers in order what was not dispatched, until all is. Returns the
    refusals."""
    refused: list[Outcome] = []
    async with asyncio.timeout(20):
        while pages:
            answers = await asyncio.gather(*(publisher.publish(page) for page in pages))
            if any(len(answer) < len(page) for answer, page in zip(answers, pages, strict=True)):
                await publisher.discard(within(2))
            refused += [one for answer in answers for one in answer.values() if one != DISPATCHED]
            left = [e for answer, page in zip(answers, pages, strict=True) for e in page if e.id not in done(answer)]
            pages = (left,) if left else ()
    return refused


def done(answers: Mapping[UUID, Outcome]) -> set[UUID]:
    return {one for one, outcome in answers.items() if outcome == DISPATCHED}


def firsts(cluster: MockCluster, topic: str) -> list[str | None]:
    return list(dict.fromkeys(ids(records(cluster.bootstrap, topic))))


@pytest.mark.parametrize("proven", [False, True], ids=["first batch of the producer", "later batch"])
@pytest.mark.parametrize("name", ["POLICY_VIOLATION", "INVALID_REQUIRED_ACKS"])
async def test_O6_nothing_behind_a_refused_event_of_its_key_goes_first(
    cluster: MockCluster, name: str, proven: bool
) -> None:
    topic = cluster.create_topic("t")
    publisher = await KafkaPublisher(cluster.bootstrap, settings={"batch.num.messages": 1, "linger.ms": 0}).open()
    events = [event(topic, payload=str(n).encode()) for n in range(40)]
    before = [event(topic)] if proven else []
    if before:
        await publisher.publish(before)
    cluster.set_round_trip(0.05)
    # What a broker answers to the batches behind one that is missing. A broker that does not know the producer takes
    # them, as these do without being told.
    behind = [KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER] * 4 if proven else []
    cluster.answer(PRODUCE, getattr(KafkaError, name), *behind)
    refused = await as_a_relay_does(publisher, events[:20], events[20:])
    assert [isinstance(one, Retry) for one in refused] == [True]
    cluster.set_round_trip(0)
    arrived = await asyncio.to_thread(firsts, cluster, topic)
    assert arrived == [str(one.id) for one in before + events]
    await publisher.close(within(1))


async def test_O9_the_first_batch_of_a_producer_is_not_acked_by_the_second(cluster: MockCluster) -> None:
    """A broker that does not know the producer takes the second batch while the first is to be tried again; the
    client then takes the ack of the second for an ack of both."""
    topic = cluster.create_topic("t")
    publisher = await KafkaPublisher(cluster.bootstrap, settings={"batch.num.messages": 1, "linger.ms": 0}).open()
    cluster.set_round_trip(0.05)
    cluster.answer(PRODUCE, KafkaError.NOT_ENOUGH_REPLICAS)
    events = [event(topic, payload=str(n).encode()) for n in range(20)]
    assert await as_a_relay_does(publisher, events) == []
    cluster.set_round_trip(0)
    assert await asyncio.to_thread(firsts, cluster, topic) == [str(one.id) for one in events]
    await publisher.close(within(1))


async def test_O24_a_partition_without_a_leader_holds_up_no_other(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic, other = cluster.create_topic("t", 3), cluster.create_topic("other", 1)
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    keys = [f"key {n}" for n in range(30)]
    lost = {key for key in keys if partition_of(key, 3) == 1}
    assert lost
    first = [event(topic, key) for key in keys]
    assert await as_a_relay_does(publisher, first) == []
    cluster.set_leader(topic, 1, -1)
    # In flight when the leader goes: nothing is heard of it, and nobody may wait for it.
    second = [event(topic, key) for key in keys] + [event(other)]
    async with asyncio.timeout(10):
        answers = await publisher.publish(second)
        await publisher.discard(within(2))
    assert answers.keys() == {one.id for one in second}
    for one in second:
        outcome = answers[one.id]
        if one.topic == topic and one.aggregate_id in lost:
            assert isinstance(outcome, Retry)
            assert outcome.reason.startswith("LEADER_NOT_AVAILABLE: partition 1")
            assert not outcome.counts, "an outage burns no attempt"
        else:
            assert outcome == DISPATCHED
    # From then on they are not even sent, and the others do not wait at all.
    third = [event(topic, key) for key in keys]
    async with asyncio.timeout(3):
        answers = await publisher.publish(third)
    assert {one.aggregate_id for one in third if answers[one.id] != DISPATCHED} == lost
    assert "no leader for partition 1" in caplog.text
    cluster.set_leader(topic, 1, 1)
    refused = await as_a_relay_does(publisher, [e for e in second + third if e.aggregate_id in lost])
    assert all(isinstance(one, Retry) for one in refused)
    arrived = await asyncio.to_thread(firsts, cluster, topic)
    assert set(arrived) == {str(one.id) for one in first + second[:-1] + third}
    for key in lost:
        wanted = [str(one.id) for one in first + second[:-1] + third if one.aggregate_id == key]
        assert [one for one in arrived if one in wanted] == wanted
    await publisher.close(within(1))
