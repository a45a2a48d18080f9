"""The product events that the service consumes, and what is known of each."""

import asyncio
import json
import uuid
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

_A_SECOND = 5.0
_PRODUCTS = 20


class ProductEvent(NamedTuple):
    """An event that the broker has, and where."""

    event_id: str
    product: str
    version: int
    partition: int
    offset: int


class ProductLoad:
    """Publishes product events at a low rate, with the headers that an outbox gives them."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._stopped = asyncio.Event()
        self.published: list[ProductEvent] = []
        """What the broker has acknowledged."""

    def stop(self) -> None:
        """Nothing further is published."""
        self._stopped.set()

    async def run(self) -> None:
        """Publishes until `stop`."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "log_level": 0, "linger.ms": 0})
        version = 0
        try:
            while not self._stopped.is_set():
                version += 1
                self._publish(producer, str(uuid.uuid4()), f"product-{version % _PRODUCTS}", version)
                await self._pause()
                producer.poll(0)
        finally:
            # An event without an answer until now may be on the topic, or not: nothing is asked about it.
            producer.purge()

    async def _pause(self) -> None:
        await asyncio.wait({stopping := asyncio.ensure_future(self._stopped.wait())}, timeout=1 / _A_SECOND)
        stopping.cancel()

    def _publish(self, producer: Producer, event_id: str, product: str, version: int) -> None:
        value = {"id": product, "name": product, "price": f"{version % 90 + 10}.50", "version": version}
        headers: list[tuple[str, str | bytes | None]] = [("id", event_id), ("type", "ProductChanged")]

        def report(error: KafkaError | None, message: Message) -> None:
            partition, offset = message.partition(), message.offset()
            if error is None and partition is not None and offset is not None:
                self.published.append(ProductEvent(event_id, product, version, partition, offset))

        body = json.dumps(value).encode()
        producer.produce(self._topic, body, product.encode(), headers=headers, on_delivery=report)
