"""A relay in front of librdkafka's mock brokers, which are as slow as the test wants."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import asyncpg
import pytest
from broker import records
from mock_cluster import MockCluster

from quiesce.kafka import KafkaPublisher, topics
from quiesce.outbox import OutboxEvent
from quiesce.outbox.events import InFlightChanged, ProducerDiscarded
from quiesce.postgres import OutboxLog, enqueue
from quiesce.relay import Relay
from quiesce.testing.contracts.publisher import event, within
from quiesce.testing.manual_stop import ManualStop
from quiesce.testing.memory_outbox import MemoryOutbox, MemoryTable


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockCluster]:
    # These brokers do not know the question for a topic's limit.
    monkeypatch.setattr(topics, "_ASK", 0.2)
    with MockCluster() as cluster:
        yield cluster


@pytest.mark.parametrize(("after", "said_by"), [(1.5, "relay"), (4.0, "relay"), (4.0, "budget")])
async def test_O11_a_stop_with_a_slow_broker_leaves_no_unanswered_event(
    cluster: MockCluster, after: float, said_by: str
) -> None:
    """Five batches in flight, 0.2 seconds each, one event a batch: 25 events a second at most. A thousand in flight
    would take 40 seconds, and the stop leaves 3."""
    topic = cluster.create_topic("t")
    table = MemoryTable()
    table.enqueue(*(OutboxEvent(topic, f"k{n % 50}", "Happened", str(n)) for n in range(2000)))
    publisher = await KafkaPublisher(cluster.bootstrap, settings={"batch.num.messages": 1, "linger.ms": 0}).open()
    # The topic is known before the broker becomes slow.
    first = event(topic)
    await publisher.publish([first])
    cluster.set_round_trip(0.2)
    relay = Relay(MemoryOutbox(table), publisher, bound=3.0 if said_by == "relay" else None)
    stop = ManualStop("relay", bound=3.0 if said_by == "budget" else None)
    running = asyncio.ensure_future(relay.run(stop))
    await asyncio.sleep(after)
    assert relay.progress.pace is None or relay.progress.pace < 100
    stop.now(within=3.0)
    async with asyncio.timeout(3.0):
        await running
    assert not stop.abandoned
    assert not stop.told(ProducerDiscarded)
    limits = [told.limit for told in stop.told(InFlightChanged)]
    assert limits
    assert max(limits) <= 100
    cluster.set_round_trip(0)
    assert (await publisher.close(within(2))).undelivered == 0
    arrived = Counter(record.event_id for record in await asyncio.to_thread(records, cluster.bootstrap, topic))
    assert set(arrived.values()) == {1}
    assert len(arrived) - 1 == sum(not row.waiting for row in table.rows)


async def test_O20_a_broker_that_takes_its_time_leaves_the_applications_pool_alone(
    cluster: MockCluster, database: str
) -> None:
    topic = cluster.create_topic("t")
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    await publisher.publish([event(topic)])
    async with asyncpg.create_pool(database, min_size=2, max_size=2) as pool:

        async def one_more(number: int) -> None:
            async with pool.acquire(timeout=5.0) as connection, connection.transaction():
                await enqueue(connection, OutboxEvent(topic, f"k{number}", "Happened", b"{}"))

        # As long a way to the broker and back as a test may take.
        cluster.set_round_trip(5.0)
        store = await OutboxLog(database, claims=3).open()
        relay = Relay(store, publisher, batch=20, max_claims=3)
        stop = ManualStop("relay")
        running = asyncio.ensure_future(relay.run(stop))
        await asyncio.gather(*map(one_more, range(20)))
        async with asyncio.timeout(5.0):
            while not relay.progress.in_flight:
                await asyncio.sleep(0.005)
            # A hundred transactions through two connections, while the relay waits for its answer.
            await asyncio.gather(*map(one_more, range(100)))
            assert relay.progress.in_flight
            async with pool.acquire() as connection:
                sessions = await connection.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND backend_type = 'client backend'"
                )
        # Its own: one for the lanes, and up to three more.
        assert 1 <= sessions - pool.get_size() <= 4
        cluster.set_round_trip(0)
        async with asyncio.timeout(20.0):
            async with pool.acquire() as connection:
                while await connection.fetchval("SELECT sum(dispatched) FROM outbox_lane") < 120:
                    await asyncio.sleep(0.02)
            stop.now(within=5.0)
            await running
    await store.close(within(2))
    await publisher.close(within(2))
