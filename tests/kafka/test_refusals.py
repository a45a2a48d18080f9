"""What a publisher makes of a broker's refusals, one by one."""

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError
from mock_cluster import INIT_PRODUCER_ID, PRODUCE, MockCluster

from quiesce.kafka import KafkaPublisher, topics
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.testing.contracts.publisher import event, within


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
async def test_for_good_is_dead_and_says_why(cluster: MockCluster, name: str) -> None:
    topic = cluster.create_topic("t")
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    cluster.answer(PRODUCE, getattr(KafkaError, name))
    (outcome,) = await outcomes(publisher, topic)
    assert isinstance(outcome, Dead)
    assert name in outcome.reason
    assert await outcomes(publisher, topic) == [DISPATCHED]
    await publisher.close(within(1))


@pytest.mark.parametrize("name", ["TOPIC_AUTHORIZATION_FAILED", "POLICY_VIOLATION"])
async def test_for_now_is_a_retry_and_says_why(cluster: MockCluster, name: str) -> None:
    topic = cluster.create_topic("t")
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    cluster.answer(PRODUCE, getattr(KafkaError, name))
    (outcome,) = await outcomes(publisher, topic)
    assert isinstance(outcome, Retry)
    assert name in outcome.reason
    # Right granted since: the client must not go on remembering the refusal by itself.
    assert await outcomes(publisher, topic) == [DISPATCHED]
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
    assert name in caplog.text
    # What comes behind a gap waits for the discard.
    assert await outcomes(publisher, topic, 3) == []
    await publisher.discard(within(2))
    assert await outcomes(publisher, topic, 3) == [DISPATCHED] * 3
    await publisher.close(within(1))


async def test_a_refused_batch_condemns_no_event_in_it(cluster: MockCluster) -> None:
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
    assert others == [DISPATCHED] * 2
    await publisher.close(within(1))
