"""The batch a consumer has in hand: what is handled, what is committed, what is left."""

from collections import Counter, deque
from collections.abc import Set

from quiesce.inbox.prefix import HandledPrefix
from quiesce.inbox.record import Batch, TopicPartition


class InHand:
    """One batch, from its fetch until nothing of it is left. Decides nothing about time."""

    def __init__(self, batch: Batch) -> None:
        self.assignment = batch.assignment
        self.left = deque(batch.records)
        """The records not handled yet, in order."""
        self.uncommitted: dict[TopicPartition, int] = {}
        """Offsets of handled records which the broker has not confirmed yet."""
        self._unconfirmed = Counter[TopicPartition]()
        self._prefix = HandledPrefix()
        self._prefix.delivered(batch.records)

    @property
    def unconfirmed(self) -> int:
        """How many handled records wait for the answer to a commit."""
        return self._unconfirmed.total()

    @property
    def partitions(self) -> Set[TopicPartition]:
        """Those of which something is left or unconfirmed."""
        return self.uncommitted.keys() | {record.source for record in self.left}

    def handled(self) -> None:
        """The first record of those left is handled."""
        record = self.left.popleft()
        self._prefix.handled(record)
        self._unconfirmed[record.source] += 1

    def to_commit(self) -> dict[TopicPartition, int]:
        """The offsets to commit now. They stay until `confirmed`, so a commit that failed is made again."""
        self.uncommitted.update(self._prefix.take())
        return self.uncommitted

    def confirmed(self) -> int:
        """The broker has them all. Returns how many records that was."""
        records = self.unconfirmed
        self.uncommitted = {}
        self._unconfirmed.clear()
        return records

    def place(self, partition: TopicPartition) -> dict[TopicPartition, int]:
        """The offset behind the last handled record of the partition, or that of the first one left.

        Committing it moves nothing that is not handled. The answer tells whether the partition is still ours.
        """
        first = next((record.offset for record in self.left if record.source == partition), None)
        offset = self.uncommitted.get(partition, first)
        return {} if offset is None else {partition: offset}

    def confirm(self, partition: TopicPartition) -> int:
        """The broker has the offset of this partition. Returns how many records that was."""
        self.uncommitted.pop(partition, None)
        return self._unconfirmed.pop(partition, 0)

    def lose(self, partition: TopicPartition) -> int:
        """The partition is not ours any more: what is left of it is its new owner's.

        Returns how many handled records could not be committed.
        """
        self.left = deque(record for record in self.left if record.source != partition)
        return self.confirm(partition)
