"""K3 on a topic that the broker has really compacted: the consumer gets to its end over the gaps."""

import asyncio
import time
from collections.abc import Callable

import pytest
from broker import QUICK_GROUP, committed, records
from confluent_kafka import Producer
from test_consumer_kafka import consuming, until

from quiesce.inbox.record import Record, TopicPartition
from quiesce.kafka import KafkaSource
from quiesce.testing.kafka import LocalKafka
from quiesce.workers import Consumer

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.0",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "100",
}


def produce(bootstrap: str, topic: str, keys: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number, key in enumerate(keys):
        producer.produce(topic, b"%d" % number, key=key, partition=0)
    assert producer.flush(15) == 0


def compacted(bootstrap: str, topic: str, bound: float = 60.0) -> list[int]:
    """Waits until the broker has left gaps. Returns the offsets that are left."""
    end = time.monotonic() + bound
    while True:
        found = [record.offset for record in records(bootstrap, topic)]
        if len(found) <= found[-1]:
            return found
        assert time.monotonic() < end, "nothing was compacted"
        # A segment is closed by the first record behind its time.
        time.sleep(0.2)
        produce(bootstrap, topic, [b"last"])


@pytest.mark.needs("kafka")
@pytest.mark.timeout(240)  # the broker's cleaner takes its time
async def test_K3_a_compacted_topic_is_handled_to_its_end_and_its_gaps_are_nothing_to_wait_for(
    own_kafka: Callable[..., LocalKafka], group: str
) -> None:
    broker = await asyncio.to_thread(own_kafka, properties={"log.cleaner.backoff.ms": "100"})
    broker.create_topic("products", 1, COMPACTED)
    await asyncio.to_thread(produce, broker.bootstrap, "products", [b"k%d" % (n % 5) for n in range(200)])
    left = await asyncio.to_thread(compacted, broker.bootstrap, "products")
    seen: list[int] = []

    async def handle(record: Record) -> None:
        seen.append(record.offset)

    source = KafkaSource(broker.bootstrap, "products", group=group, settings=QUICK_GROUP)
    async with consuming(Consumer(source, handle, concurrency=4, in_flight=10)):
        await until(lambda: left[-1] in seen)
    assert len(left) < 150
    assert set(seen) <= set(left)
    # Contiguous over what is delivered: at the end nothing is left to be read.
    assert await asyncio.to_thread(committed, broker.bootstrap, group, "products", 1) == {
        TopicPartition("products", 0): left[-1] + 1
    }
