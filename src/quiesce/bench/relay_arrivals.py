"""The consumer of the relay's bench: notes when each event of a load came."""

import threading
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from quiesce.bench.relay_load import Timings
from quiesce.errors import StartError

_ARRIVAL_BOUND = 15.0
_ASK_BOUND = 5.0
_POLL = 0.005


class Arrivals:
    """Reads the topic in a thread from its present end on. A context manager."""

    def __init__(self, broker: str, topic: str, partitions: int, timings: Timings) -> None:
        self._timings = timings
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker,
                "group.id": "bench",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 500,
                "fetch.queue.backoff.ms": 1,
                "log_level": 0,
            }
        )
        self._consumer.assign(ends_of(self._consumer, topic, partitions))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="bench-consumer", daemon=True)

    def __enter__(self) -> "Arrivals":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(5)
        self._consumer.close()

    def wait(self, bound: float = _ARRIVAL_BOUND) -> None:
        """Until all that was committed has come.

        Raises:
            StartError: `bound` seconds have passed without any arrival.
        """
        seen, until = -1, 0.0
        while (missing := self._timings.missing) > 0:
            if self._timings.arrivals != seen:
                seen, until = self._timings.arrivals, time.monotonic() + bound
            if time.monotonic() > until:
                raise StartError(f"{missing:,} of {self._timings.commits:,} events did not arrive in {bound:g} s")
            time.sleep(_POLL)

    def _read(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            now = time.monotonic()
            self._timings.arrived(message.value() or b"", now)


def ends_of(consumer: Consumer, topic: str, partitions: int) -> list[TopicPartition]:
    """The end of each partition, as the place to read on from.

    Raises:
        StartError: the broker does not tell them within 15 seconds.
    """
    return [
        TopicPartition(topic, number, _end_of(consumer, TopicPartition(topic, number))) for number in range(partitions)
    ]


def _end_of(consumer: Consumer, partition: TopicPartition) -> int:
    until = time.monotonic() + _ARRIVAL_BOUND
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=_ASK_BOUND)[1])
        except KafkaException as error:
            # A topic that was just made has no leader that every client knows.
            if time.monotonic() > until:
                raise StartError(f"the broker does not tell the end of {partition.topic}: {error}") from error
            time.sleep(_POLL)
