"""Which offsets may be committed: the contiguous handled prefix, per partition."""

from collections.abc import Iterable

from quiesce.inbox.record import Record, TopicPartition


class HandledPrefix:
    """Follows the records delivered and the records handled.

    Only the prefix without a hole counts: a record that is not handled yet holds the commit in front of
    itself. It is contiguous over the records *delivered*, not over their numbers, since compaction and
    transactions leave gaps in the numbers.
    """

    def __init__(self) -> None:
        self._delivered: dict[TopicPartition, list[int]] = {}
        self._handled: dict[TopicPartition, set[int]] = {}

    def delivered(self, records: Iterable[Record]) -> None:
        """Adds records in the order in which they came."""
        for record in records:
            self._delivered.setdefault(record.source, []).append(record.offset)

    def handled(self, record: Record) -> None:
        self._handled.setdefault(record.source, set()).add(record.offset)

    def take(self) -> dict[TopicPartition, int]:
        """The offsets to commit since the last call: for each partition that moved on, the one after the
        last handled record of the prefix."""
        commit: dict[TopicPartition, int] = {}
        for source, offsets in self._delivered.items():
            done = self._handled.get(source, set())
            count = 0
            for offset in offsets:
                if offset not in done:
                    break
                count += 1
            if count:
                commit[source] = offsets[count - 1] + 1
                done.difference_update(offsets[:count])
                del offsets[:count]
        return commit

    def pending(self) -> int:
        """Records delivered and not in a prefix taken so far."""
        return sum(len(offsets) for offsets in self._delivered.values())
