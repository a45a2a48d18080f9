"""The end of a partition that no record stands at: a transaction's marker, or what compaction took.

Who commits behind the last record stays behind such an end for ever, and its lag never comes to 0.
"""

from collections.abc import Callable, Iterable, Mapping

from quiesce.inbox.record import TopicPartition


class Tails:
    """Ends of partitions against what is committed. Nothing here waits."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}

    def at_end(self, partition: TopicPartition, offset: int) -> None:
        """All before this offset has been fetched."""
        self._ends[partition] = offset

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._committed.update(offsets)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """More has come, or it is to be fetched anew: where it ends is not known."""
        for partition in partitions:
            self._ends.pop(partition, None)

    def gone(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._ends.pop(partition, None)
            self._committed.pop(partition, None)

    def found(self, is_idle: Callable[[TopicPartition], bool]) -> dict[TopicPartition, int]:
        """The ends to commit of partitions of which all that was fetched is committed.

        Where nothing is known of what is committed, something may be that is further on.
        """
        return {
            partition: end
            for partition, end in self._ends.items()
            if self._committed.get(partition, end) < end and is_idle(partition)
        }
