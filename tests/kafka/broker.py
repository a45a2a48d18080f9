"""What the tests of this room ask a broker with a plain client, past the code under test."""

import functools
import time
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from quiesce.inbox.record import Record, TopicPartition
from quiesce.kafka.records import as_record

_BOUND = 15.0


def records(bootstrap: str, topic: str) -> list[Record]:
    """Everything on the topic as it is now, each partition in its order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-without-a-group",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=_BOUND).topics[topic].partitions)
        consumer.assign([KafkaPartition(topic, number, 0) for number in partitions])
        found: list[Record] = []
        ended: set[int | None] = set()
        until = time.monotonic() + _BOUND
        while len(ended) < len(partitions):
            assert time.monotonic() < until, f"{topic} could not be read to its end"
            for message in consumer.consume(1000, 0.05):
                if message.error() is None:
                    found.append(as_record(message))
                else:
                    ended.add(message.partition())
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


@functools.cache
def _producer(bootstrap: str) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})


def append(bootstrap: str, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
    producer = _producer(bootstrap)
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(_BOUND) == 0


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[TopicPartition, int]:
    """The group's committed offsets; a partition without one is left out."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        asked = [KafkaPartition(topic, number) for number in range(partitions)]
        offsets = consumer.committed(asked, timeout=_BOUND)
    except KafkaException as error:
        raise AssertionError(f"the group's offsets could not be read: {error}") from error
    finally:
        consumer.close()
    return {TopicPartition(one.topic, one.partition): one.offset for one in offsets if one.offset >= 0}


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    """As retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([KafkaPartition(topic, 0, offset)]).values():
        future.result(_BOUND)


def set_topic(bootstrap: str, topic: str, setting: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    change = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[change])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(_BOUND)


def wait_until(holds: Callable[[], bool], what: str, bound: float = 10.0) -> None:
    until = time.monotonic() + bound
    while not holds():
        assert time.monotonic() < until, f"{what}: not within {bound:g} s"
        time.sleep(0.01)


QUICK_GROUP = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 100}
"""Members hear of a rebalance with a heartbeat."""

NEW_PROTOCOL = {"group.protocol": "consumer"}
"""KIP-848: the broker assigns, and decides about sessions and heartbeats."""
