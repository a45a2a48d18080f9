"""The topic that the consumers of the bench read: filled once, read again and again by new groups."""

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Producer

from quiesce.bench.relay_job import PRODUCER
from quiesce.errors import StartError
from quiesce.testing.kafka_address import KafkaAddress

PARTITIONS = 6
LEAST_PAYLOAD = 40
"""Bytes in which the JSON has room."""
_BOUND = 120.0
"""Seconds for all acks."""


@contextlib.contextmanager
def filled(bootstrap: str, records: int, keys: int, payload: int) -> Iterator[str]:
    """The name of a topic with so many records: `payload` bytes of JSON, and the headers that the outbox's relay gives.

    Raises:
        StartError: the broker did not take them.
    """
    broker = KafkaAddress(bootstrap)
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, PARTITIONS)
    try:
        _fill(bootstrap, topic, records, keys, payload)
        yield topic
    finally:
        with contextlib.suppress(StartError):
            broker.delete_topic(topic)


def _fill(bootstrap: str, topic: str, records: int, keys: int, payload: int) -> None:
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    until = time.monotonic() + _BOUND
    for number in range(records):
        headers: Any = [("id", str(uuid.uuid4())), ("type", "Measured")]
        value = f'{{"number":{number},"note":"'.encode().ljust(payload - 2, b"x") + b'"}'
        while True:
            try:
                producer.produce(topic, value, f"key-{number % keys}", headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
                if time.monotonic() > until:
                    raise StartError("the broker did not take the records of the bench") from None
    if left := producer.flush(max(1.0, until - time.monotonic())):
        raise StartError(f"the broker did not take the records of the bench: {left} are left")
