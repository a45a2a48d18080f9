"""The first event that a producer sends to a partition goes alone."""

import time
from collections.abc import Callable, Container, Iterable, Sequence

from quiesce.kafka.partitions import partition_of
from quiesce.outbox.event import ClaimedEvent

_LASTS = 3600.0
"""Seconds for which a partition counts as proven: a broker forgets a producer that is idle for a day
(`producer.id.expiration.ms`)."""


class Pioneers:
    """Which partitions a producer has written to.

    A broker refuses a batch when the one before it is missing, and so keeps the order while several are in
    flight. But it can only tell if it knows the producer: while nothing of it has been written to a partition,
    any batch is taken. Were the first one refused, the second would overtake it; and were the first one to be
    tried again, the client would take the second one's ack for an ack of both, and the first would be lost.
    So one event, the pioneer, is answered before the partition gets anything else.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._proven: dict[str, dict[int, float]] = {}
        self._whole: dict[str, float] = {}
        """Topics all of whose partitions are proven, and until when."""

    def among(
        self,
        events: Sequence[ClaimedEvent],
        topics: Iterable[str],
        done: Container[int],
        partitions: Callable[[str], int],
    ) -> list[int]:
        """The places of the first event for each partition that is not proven, leaving out the places that are `done`.

        `topics` are those of the events. `partitions` tells how many a topic has, 0 if that is not known.
        """
        now = self._clock()
        unproven = [topic for topic in topics if self._whole.get(topic, 0.0) <= now]
        if not unproven:
            return []
        counts = {topic: count for topic in unproven if (count := partitions(topic))}
        found: dict[tuple[str, int], int] = {}
        for place, event in enumerate(events):
            if event.topic not in counts or place in done:
                continue
            number = partition_of(event.aggregate_id, counts[event.topic])
            if self._proven.get(event.topic, {}).get(number, 0.0) <= now:
                found.setdefault((event.topic, number), place)
        return list(found.values())

    def proven(self, topics: Iterable[str]) -> bool:
        """Whether all partitions of all these topics are."""
        now = self._clock()
        return all(self._whole.get(topic, 0.0) > now for topic in topics)

    def arrived(self, event: ClaimedEvent, partitions: int) -> None:
        """A pioneer was acked: its partition is proven."""
        proven = self._proven.setdefault(event.topic, {})
        proven[partition_of(event.aggregate_id, partitions)] = self._clock() + _LASTS
        if len(proven) == partitions:
            self._whole[event.topic] = min(proven.values())
