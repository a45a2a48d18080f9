"""A topic that gains partitions while the relay sends to it."""

import asyncio
import logging

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from quiesce.kafka import KafkaPublisher, topics
from quiesce.testing.contracts.publisher import event, within
from quiesce_pytest import MakeTopic


@pytest.mark.needs("kafka")
async def test_a_topic_that_gains_partitions_is_told_once(
    kafka: str, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topics, "_TRUSTED", 0.0)
    name = topic("grows", 2)
    publisher = await KafkaPublisher(kafka).open()
    try:
        with caplog.at_level(logging.ERROR, "quiesce.kafka"):
            await publisher.publish([event(name)])
            await publisher.publish([event(name)])
            assert "keys have moved" not in caplog.text
            admin = AdminClient({"bootstrap.servers": kafka})
            await asyncio.to_thread(admin.create_partitions([NewPartitions(name, 3)])[name].result, 20)
            async with asyncio.timeout(20):
                while "keys have moved" not in caplog.text:
                    await publisher.publish([event(name)])
            for _ in range(3):
                await publisher.publish([event(name)])
        assert caplog.text.count("has 3 partitions now, it had 2: keys have moved") == 1
    finally:
        await publisher.close(within(5))
