"""A topic that is deleted, or hidden, while the relay sends to it and to others."""

import asyncio
from collections.abc import Iterator

import pytest
from broker import records
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from mock_cluster import MockCluster

from quiesce.kafka import KafkaPublisher, topics
from quiesce.lifecycle.backoff import Backoff
from quiesce.outbox import OutboxEvent
from quiesce.outbox.events import OutageBegan
from quiesce.outbox.outcome import DISPATCHED, Retry
from quiesce.outbox.retry import RetryPolicy
from quiesce.relay import Relay
from quiesce.testing.contracts.publisher import event, within
from quiesce.testing.kafka_address import KafkaAddress
from quiesce.testing.manual_stop import ManualStop
from quiesce.testing.memory_outbox import MemoryOutbox, MemoryTable
from quiesce_pytest import MakeTopic


async def delete(kafka: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    await asyncio.to_thread(admin.delete_topics([topic])[topic].result, 20)


async def test_O24_events_in_flight_to_a_topic_that_was_deleted_hold_up_no_other(kafka: str, topic: MakeTopic) -> None:
    doomed, fine = topic("doomed"), topic("fine")
    publisher = await KafkaPublisher(kafka).open()
    keys = [f"key {n}" for n in range(20)]
    before = [event(name, key) for key in keys for name in (doomed, fine)]
    answers = await publisher.publish(before)
    assert all(outcome == DISPATCHED for outcome in answers.values())
    await delete(kafka, doomed)
    # It is trusted still: they are handed over, and nothing is heard of them.
    first = [event(name, key) for key in keys for name in (doomed, fine)]
    behind = [event(name, key) for key in keys for name in (doomed, fine)]
    async with asyncio.timeout(20):
        calls = [asyncio.ensure_future(publisher.publish(page)) for page in (first, behind)]
        await asyncio.wait(calls)
        await publisher.discard(within(5))
    for page, call in zip((first, behind), calls, strict=True):
        answers = call.result()
        for one in page:
            outcome = answers.get(one.id)
            if one.topic == doomed:
                # Those that were not handed over have none.
                assert outcome is None or isinstance(outcome, Retry)
                assert outcome is None or outcome.reason.startswith("UNKNOWN_TOPIC_OR_PART")
            elif page is first:
                assert outcome == DISPATCHED
    assert all(one.id in calls[0].result() for one in first), "none has an unknown fate"
    # From then on they are not even sent, and nobody waits.
    third = [event(name, key) for key in keys for name in (doomed, fine)]
    async with asyncio.timeout(5):
        answers = await publisher.publish(third)
    assert {one.topic for one in third if answers[one.id] != DISPATCHED} == {doomed}
    await publisher.close(within(5))


async def test_O24_a_topic_that_is_deleted_and_comes_back_stops_no_other_and_keeps_the_order(
    kafka: str, topic: MakeTopic
) -> None:
    doomed, fine = topic("doomed"), topic("fine")
    publisher = await KafkaPublisher(kafka).open()
    table = MemoryTable()
    # Without the publisher's own finding out the others would wait for as long as `publish_bound`.
    retry = RetryPolicy(attempts=1000, backoff=Backoff(first=0.2, ceiling=0.5))
    relay = Relay(MemoryOutbox(table), publisher, retry=retry, batch=50, publish_bound=30.0)
    stop = ManualStop("relay")
    running = asyncio.ensure_future(relay.run(stop))
    keys = [f"key {n}" for n in range(10)]

    async def flow(name: str) -> None:
        async with asyncio.timeout(20):
            while any(row.waiting for row in table.rows if row.event.topic == name):
                await asyncio.sleep(0.01)

    def write() -> None:
        table.enqueue(*(OutboxEvent(name, key, "Happened", "{}") for key in keys for name in (doomed, fine)))

    write()
    await flow(doomed)
    await delete(kafka, doomed)
    for _ in range(10):
        write()
        await flow(fine)
    gone = [row for row in table.rows if row.waiting]
    assert {row.event.topic for row in gone} == {doomed}
    assert not stop.told(OutageBegan), "the broker is not away"
    await asyncio.to_thread(KafkaAddress(kafka).create_topic, doomed, 3)
    await flow(doomed)
    stop.now(within=5.0)
    await running
    await publisher.close(within(5))
    place = {str(row.event.id): (row.event.aggregate_id, row.position) for row in table.rows}
    for name in (doomed, fine):
        arrived = [place[str(one.event_id)] for one in await asyncio.to_thread(records, kafka, name)]
        for key in keys:
            firsts = list(dict.fromkeys(position for one, position in arrived if one == key))
            assert firsts == sorted(firsts), key
        wanted = gone if name == doomed else [row for row in table.rows if row.event.topic == fine]
        assert {row.position for row in wanted} <= {position for _, position in arrived}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockCluster]:
    monkeypatch.setattr(topics, "_ASK", 0.3)
    with MockCluster() as cluster:
        yield cluster


async def test_O24_slow_answers_beside_a_topic_that_is_missing_cost_no_producer(
    cluster: MockCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was sent to that topic, so that nothing sent waits for it."""
    missing, fine = cluster.create_topic("missing"), cluster.create_topic("fine")
    cluster.set_topic_error(missing, KafkaError.UNKNOWN_TOPIC_OR_PART)
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    page = [event(name, f"key {n}") for n in range(10) for name in (missing, fine)]
    async with asyncio.timeout(20):
        answers = await publisher.publish(page)
    assert {one.topic for one in page if answers[one.id] != DISPATCHED} == {missing}
    cluster.set_round_trip(1.3)  # answers are asked after from one second on
    page = [event(name, f"key {n}") for n in range(10) for name in (missing, fine)]
    async with asyncio.timeout(20):
        answers = await publisher.publish(page)
    assert {one.topic for one in page if answers[one.id] != DISPATCHED} == {missing}
    assert "will be replaced" not in caplog.text
    cluster.set_round_trip(0)
    await publisher.close(within(2))
