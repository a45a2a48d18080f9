"""Whether a stretch of the topic holds the backlog's events in order, each once and none left out."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer

from quiesce.bench.relay_arrivals import ends_of
from quiesce.errors import StartError

_READ_BOUND = 60.0
_AT_ONCE = 1_000


@dataclass(slots=True)
class OrderCheck:
    """Events of a backlog are numbered, and number n has the key n % keys: so each key counts up by `keys`.

    Args:
        keys: how many there are.
    """

    keys: int
    events: int = 0
    doubled: int = 0
    disordered: int = 0
    """Events of a key that came before another one that was written before them."""
    _last: dict[int, int] = field(default_factory=dict)

    def saw(self, number: int) -> None:
        """The next message of its partition is event number `number`."""
        key = number % self.keys
        last = self._last.get(key, key - self.keys)
        if number <= last:
            self.doubled += 1
            return
        self.events += 1
        self.disordered += number != last + self.keys
        self._last[key] = number


class Stretch:
    """A part of the topic that begins at its present end."""

    def __init__(self, broker: str, topic: str, partitions: int) -> None:
        self._broker = broker
        self._topic = topic
        self._partitions = partitions
        with _consumer(broker) as consumer:
            self._begins = ends_of(consumer, topic, partitions)

    def check(self, keys: int) -> OrderCheck:
        """Reads up to what is now the end.

        Raises:
            StartError: it cannot be read within a minute.
        """
        found = OrderCheck(keys)
        with _consumer(self._broker) as consumer:
            ends = {end.partition: end.offset for end in ends_of(consumer, self._topic, self._partitions)}
            left = sum(ends.values()) - sum(begin.offset for begin in self._begins)
            consumer.assign(list(self._begins))
            until = time.monotonic() + _READ_BOUND
            while left > 0:
                for message in consumer.consume(min(left, _AT_ONCE), timeout=0.5):
                    if message.error() is None and (message.offset() or 0) < ends[message.partition() or 0]:
                        left -= 1
                        found.saw(int((message.value() or b"").split(b" ", 1)[0]))
                if time.monotonic() > until:
                    raise StartError(f"{left:,} messages of the topic could not be read within {_READ_BOUND:g} s")
        return found


@contextmanager
def _consumer(broker: str) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": broker, "group.id": "bench", "enable.auto.commit": False, "log_level": 0})
    try:
        yield consumer
    finally:
        consumer.close()
