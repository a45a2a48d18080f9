"""Publisher and source on the embedded broker, as the demo uses them."""

import asyncio
from uuid import uuid4

import pytest

from quiesce.kafka import KafkaPublisher, KafkaSource
from quiesce.outbox.outcome import DISPATCHED
from quiesce.testing.contracts.publisher import event, within
from quiesce.testing.contracts.source import handle
from quiesce.testing.kafka_address import KafkaAddress

DEMO = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}


@pytest.mark.xdist_group("embedded broker")
async def test_there_and_back(tansu: str, group: str) -> None:
    topic = f"t-{uuid4().hex[:8]}"
    await asyncio.to_thread(KafkaAddress(tansu).create_topic, topic, 2)
    publisher = await KafkaPublisher(tansu).open()
    first = await KafkaSource(tansu, topic, group=group, settings=DEMO).open()
    events = [event(topic, f"key {n % 5}") for n in range(200)]
    async with asyncio.timeout(20):
        assert await publisher.publish(events) == {one.id: DISPATCHED for one in events}
    got = await handle(first, 200)
    assert not (await first.close(within(5))).forced
    second = await KafkaSource(tansu, topic, group=group, settings=DEMO).open()
    more = [event(topic, "more") for _ in range(10)]
    await publisher.publish(more)
    got += await handle(second, 10)
    assert [record.event_id for record in got if record.key == b"more"] == [str(one.id) for one in more]
    for key in range(5):
        wanted = [str(one.id) for one in events if one.aggregate_id == f"key {key}"]
        assert [record.event_id for record in got if record.key == f"key {key}".encode()] == wanted
    assert len(got) == 210
    await second.close(within(5))
    await publisher.close(within(5))
