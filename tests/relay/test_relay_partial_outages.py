"""A relay in front of librdkafka's mock brokers: one topic, or one partition, is in trouble and others are not."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from broker import records
from confluent_kafka import KafkaError
from mock_cluster import PRODUCE, MockCluster

from quiesce.kafka import KafkaPublisher, topics
from quiesce.kafka.partitions import partition_of
from quiesce.lifecycle.backoff import Backoff
from quiesce.outbox import OutboxEvent
from quiesce.outbox.events import ClaimSettled, OutageBegan
from quiesce.outbox.retry import RetryPolicy
from quiesce.relay import Relay
from quiesce.testing.contracts.publisher import within
from quiesce.testing.manual_stop import ManualStop
from quiesce.testing.memory_outbox import MemoryOutbox, MemoryRow, MemoryTable

KEYS = [f"key {n}" for n in range(30)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockCluster]:
    # These brokers do not know the question for a topic's limit.
    monkeypatch.setattr(topics, "_ASK", 0.3)
    with MockCluster() as cluster:
        yield cluster


@asynccontextmanager
async def moving(cluster: MockCluster, table: MemoryTable, publish_bound: float = 10.0) -> AsyncIterator[ManualStop]:
    """A relay at work, stopped at the end."""
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    # Hundreds of tries in a test, and yet more attempts than an event may need.
    retry = RetryPolicy(attempts=1000, backoff=Backoff(first=0.05, ceiling=0.3))
    relay = Relay(MemoryOutbox(table), publisher, retry=retry, batch=50, publish_bound=publish_bound)
    stop = ManualStop("relay")
    running = asyncio.ensure_future(relay.run(stop))
    try:
        yield stop
    finally:
        stop.now(within=5.0)
        await running
        await publisher.close(within(2))


async def until(holds: Callable[[], bool], what: str, bound: float = 10.0) -> None:
    async with asyncio.timeout(bound):
        while not holds():
            await asyncio.sleep(0.02)
    assert holds(), what


def check(cluster: MockCluster, topic: str, table: MemoryTable) -> None:
    """Nothing is lost, first occurrences are in order, and how many came twice is what a discard may double."""
    number = {str(row.event.id): row.position for row in table.rows if row.event.topic == topic}
    arrived = [number[str(record.event_id)] for record in records(cluster.bootstrap, topic)]
    assert set(arrived) == set(number.values())
    key = {row.position: row.event.aggregate_id for row in table.rows}
    for one in set(key.values()):
        firsts = [n for n in dict.fromkeys(arrived) if key[n] == one]
        assert firsts == sorted(firsts), one


async def test_O8_a_broker_that_is_down_and_comes_up_costs_no_attempt_and_no_event(cluster: MockCluster) -> None:
    topic = cluster.create_topic("t", 3)
    table = MemoryTable()
    table.enqueue(*(OutboxEvent(topic, key, "Happened", "{}") for _ in range(10) for key in KEYS))
    async with moving(cluster, table, publish_bound=1.5) as stop:
        await until(lambda: not any(row.waiting for row in table.rows), "all went")
        for _ in range(2):
            told = len(stop.told(OutageBegan))
            cluster.set_down()
            table.enqueue(*(OutboxEvent(topic, key, "Happened", "{}") for key in KEYS))
            await until(lambda told=told: len(stop.told(OutageBegan)) > told, "the outage is noticed")  # type: ignore[misc]
            assert any(row.waiting for row in table.rows)
            cluster.set_up()
            await until(lambda: not any(row.waiting for row in table.rows), "what waited went", 30.0)
    assert [row.attempts for row in table.rows] == [0] * len(table.rows)
    assert not any(row.dead for row in table.rows)
    check(cluster, topic, table)


async def test_O24_a_partition_that_loses_its_leader_holds_up_no_other(cluster: MockCluster) -> None:
    topic = cluster.create_topic("t", 3)
    table = MemoryTable()

    def write(rounds: int) -> list[MemoryRow]:
        before = len(table.rows)
        table.enqueue(*(OutboxEvent(topic, key, "Happened", "{}") for _ in range(rounds) for key in KEYS))
        return table.rows[before:]

    async with moving(cluster, table) as stop:
        write(10)
        await until(lambda: not any(row.waiting for row in table.rows), "they flow")
        cluster.set_leader(topic, 1, -1)
        lost = {key for key in KEYS if partition_of(key, 3) == 1}
        for _ in range(5):
            others = [row for row in write(5) if row.event.aggregate_id not in lost]
            await until(lambda others=others: not any(row.waiting for row in others), "others flow", 5.0)  # type: ignore[misc]
        left = [row for row in table.rows if row.waiting]
        assert {row.event.aggregate_id for row in left} == lost
        assert not any(row.attempts for row in left), "an outage burns no attempt"
        assert all(row.reason.startswith("LEADER_NOT_AVAILABLE") for row in left if row.reason)
        assert not stop.told(OutageBegan), "the broker is not away"
        cluster.set_leader(topic, 1, 1)
        await until(lambda: not any(row.waiting for row in table.rows), "it ends by itself")
    assert not stop.abandoned
    refused = sum((Counter(told.refused) for told in stop.told(ClaimSettled)), Counter[str]())
    assert refused.keys() == {"LEADER_NOT_AVAILABLE"}
    await asyncio.to_thread(check, cluster, topic, table)


async def test_O24_each_trouble_of_a_topic_has_its_name_and_stops_no_other(cluster: MockCluster) -> None:
    fine, forbidden, missing = (cluster.create_topic(name) for name in ("fine", "forbidden", "missing"))
    cluster.answer_for(forbidden, 0, PRODUCE, *[KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2)
    cluster.set_topic_error(missing, KafkaError.UNKNOWN_TOPIC_OR_PART)
    table = MemoryTable()
    names = (fine, forbidden, missing)
    table.enqueue(*(OutboxEvent(topic, key, "Happened", "{}") for _ in range(5) for key in KEYS for topic in names))
    async with moving(cluster, table) as stop:
        good = [row for row in table.rows if row.event.topic == fine]
        await until(lambda: not any(row.waiting for row in good), "the good topic flows")
        assert any(row.waiting for row in table.rows)
        cluster.set_topic_error(missing, 0)
        await until(lambda: not any(row.waiting for row in table.rows), "the others come when they can", 20.0)
        assert not stop.told(OutageBegan)
    refused = sum((Counter(told.refused) for told in stop.told(ClaimSettled)), Counter[str]())
    assert refused.keys() == {"TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART"}
    for topic in names:
        await asyncio.to_thread(check, cluster, topic, table)
