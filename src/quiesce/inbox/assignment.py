"""Which partitions are ours, since when, and which of them somebody has in hand. Nothing here waits."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from quiesce.inbox.record import Record, TopicPartition


@dataclass(slots=True)
class _Stretch:
    """Offsets handed out under a number: from the first that is not committed to the one after the last."""

    number: int
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
        self._in_hand: dict[TopicPartition, list[_Stretch]] = {}
        self._next: dict[TopicPartition, int] = {}

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
            self._in_hand.pop(partition, None)
            self._next.pop(partition, None)

    def hand_out(self, *runs: Sequence[Record]) -> int:
        """Notes what is in hand from now on, records of one partition in each run; returns the number it is
        in hand under."""
        for run in runs:
            if not run:
                continue
            partition, begin, end = run[0].source, run[0].offset, run[-1].offset + 1
            stretches = self._in_hand.setdefault(partition, [])
            if stretches and (last := stretches[-1]).number == self.number:
                last.begin, last.end = min(last.begin, begin), end
            else:
                stretches.append(_Stretch(self.number, begin, end))
            self._next[partition] = end
        return self.number

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The broker has these offsets. What lies before them is out of hand."""
        for partition, offset in offsets.items():
            left = [one for one in self._in_hand.get(partition, ()) if one.end > offset]
            for one in left:
                one.begin = max(one.begin, offset)
            self._keep(partition, left)

    def done(self, number: int, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Nothing of these partitions, or of any, that was handed out under `number` is in hand any more.

        Returns where to go back to: what was put away without a commit has to be delivered again, or the
        next commit of its partition would pass over it.
        """
        back: dict[TopicPartition, int] = {}
        for partition in self._in_hand.keys() & partitions if partitions is not None else list(self._in_hand):
            stretches = self._in_hand[partition]
            put_away = [one.begin for one in stretches if one.number == number]
            self._keep(partition, [one for one in stretches if one.number != number])
            # Unless it has gone back as far as that already.
            if put_away and min(put_away) < self._next[partition]:
                back[partition] = self._next[partition] = min(put_away)
        return back

    def in_hand(self, partitions: Collection[TopicPartition] | None = None) -> bool:
        """Whether something is in hand: of these partitions, or at all."""
        if partitions is None:
            return bool(self._in_hand)
        return not self._in_hand.keys().isdisjoint(partitions)

    def ours(self, offsets: Mapping[TopicPartition, int], number: int) -> dict[TopicPartition, int]:
        """Of these offsets those that work handed out under `number` may commit."""
        return {partition: offset for partition, offset in offsets.items() if self.is_ours(partition, number)}

    def is_ours(self, partition: TopicPartition, number: int) -> bool:
        """Whether the partition has been ours without a break since `number`."""
        since = self._since.get(partition)
        return since is not None and since <= number

    def _keep(self, partition: TopicPartition, stretches: list[_Stretch]) -> None:
        if stretches:
            self._in_hand[partition] = stretches
        else:
            self._in_hand.pop(partition, None)
