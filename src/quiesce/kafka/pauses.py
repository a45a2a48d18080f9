"""Pauses of single partitions: what the client was told, against what has to be."""

from collections.abc import Callable, Collection, Iterable

from confluent_kafka import Consumer, KafkaException

from quiesce.inbox.record import TopicPartition
from quiesce.kafka.records import as_kafka


class Pauses:
    """The pauses that the client keeps, as far as we have told it. On the consumer's thread only.

    The client keeps a pause over a rebalance: a partition that was paused, went and came back is paused, and
    nobody would lift it. So what is laid on is remembered beyond the assignment, and laid on anew for one that
    has just come.
    """

    def __init__(self) -> None:
        self.laid: set[TopicPartition] = set()
        self._unsure: set[TopicPartition] = set()

    def came(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are ours from now on."""
        self._unsure.update(partitions)

    def apply(self, consumer: Consumer, ours: Collection[TopicPartition], wanted: frozenset[TopicPartition]) -> None:
        """Lays on and lifts, so that of `ours` just those in `wanted` are paused."""
        if wanted or self.laid:
            lay = {one for one in wanted if one not in self.laid or one in self._unsure}.intersection(ours)
            self.laid = (self.laid - lay) | _told(consumer.pause, lay)
            self.laid -= _told(consumer.resume, (self.laid - wanted).intersection(ours))
        self._unsure.clear()


def _told(tell: Callable[..., None], partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    """Those that the client was told of. One that it does not know just now is told of in the next turn."""
    told = set(partitions)
    try:
        if told:
            tell(as_kafka(told))
    except KafkaException:
        return set()
    return told
