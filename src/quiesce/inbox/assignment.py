"""Which partitions are ours, since when, and which of them somebody has in hand. Nothing here waits."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from quiesce.inbox.record import Record, TopicPartition


@dataclass(slots=True)
class _Stretch:
    """Offsets in hand: from the first that is not committed to the one after the last."""

    begin: int
    end: int


class Assignment:
    """The numbers that tell a late end of work from one in time.

    Each change of what is ours has a number, and each partition remembers the number it came with. Work
    handed out under a number may be committed as long as its partition has been ours without a break since
    then. So work on partitions that a cooperative rebalance leaves alone goes on, and work on one that went
    and came back is refused.
    """

    def __init__(self) -> None:
        self.number = 0
        self._since: dict[TopicPartition, int] = {}
        self._in_hand: dict[int, dict[TopicPartition, _Stretch]] = {}

    @property
    def partitions(self) -> Collection[TopicPartition]:
        return self._since.keys()

    def gained(self, partitions: Iterable[TopicPartition]) -> None:
        self.number += 1
        for partition in partitions:
            self._since[partition] = self.number

    def gone(self, partitions: Iterable[TopicPartition]) -> None:
        self.number += 1
        for partition in partitions:
            self._since.pop(partition, None)

    def hand_out(self, records: Iterable[Record]) -> int:
        """Notes what is in hand from now on; returns the number it is in hand under."""
        for record in records:
            held = self._in_hand.setdefault(self.number, {})
            stretch = held.setdefault(record.source, _Stretch(record.offset, 0))
            stretch.end = record.offset + 1
        return self.number

    def committed(self, offsets: Mapping[TopicPartition, int], number: int) -> None:
        """The broker has these offsets."""
        held = self._in_hand.get(number, {})
        for partition, offset in offsets.items():
            if partition in held:
                held[partition].begin = max(held[partition].begin, offset)

    def done(self, number: int) -> dict[TopicPartition, int]:
        """Nothing of this number is in hand any more.

        Returns where to go back to: what was put away without a commit, and is still ours, has to be
        delivered again, or the next commit of its partition would pass over it.
        """
        held = self._in_hand.pop(number, {})
        left = {partition: one.begin for partition, one in held.items() if one.begin < one.end}
        return self.ours(left, number)

    def in_hand(self, partitions: Collection[TopicPartition] | None = None) -> bool:
        """Whether something is in hand: of these partitions, or at all."""
        if partitions is None:
            return bool(self._in_hand)
        return any(not held.keys().isdisjoint(partitions) for held in self._in_hand.values())

    def ours(self, offsets: Mapping[TopicPartition, int], number: int) -> dict[TopicPartition, int]:
        """Of these offsets those that work handed out under `number` may commit."""
        return {
            partition: offset
            for partition, offset in offsets.items()
            if (since := self._since.get(partition)) is not None and since <= number
        }
