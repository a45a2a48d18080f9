"""Where records come from."""

from collections.abc import Mapping
from typing import Protocol

from quiesce.inbox.record import Batch, TopicPartition
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed


class Source(Protocol):
    """A member of a consumer group. A `Resource` of part `producers`.

    Each assignment has a number. Records and commits carry it, so that an end that comes after the
    partitions were taken away is refused instead of undoing what the new owner did.
    """

    @property
    def name(self) -> str: ...

    @property
    def part(self) -> Part: ...

    async def open(self) -> "Source": ...

    async def close(self, deadline: Deadline) -> Closed:
        """Leaves the group, bounded. Safe to call twice."""
        ...

    async def fetch(self, limit: int) -> Batch:
        """Waits for up to `limit` records of one assignment. A cancel loses none: the next call has them.

        It returns an empty batch at least once a second, so that nobody waits on it for ever.

        Raises:
            Unavailable: the group or the brokers cannot be reached and have said so.
        """
        ...

    async def commit(self, offsets: Mapping[TopicPartition, int], assignment: int, deadline: Deadline) -> None:
        """Commits the offsets and waits for the broker's answer. Waits a rebalance out.

        A partition may be committed under `assignment` while it has been ours without a break since that
        number: a rebalance that leaves it alone does not touch the work on it.

        Raises:
            CommitRefused: some of the partitions are not ours any more, or were away meanwhile. Their offsets
                are not committed; those of the others are.
            Unavailable: no answer by the deadline; whether they are committed is unknown.
        """
        ...

    def done(self, assignment: int) -> None:
        """Says that nothing of this assignment is in hand any more: a revoke waits for it, bounded.

        Records of it that were fetched and not committed are delivered again, as far as their partitions
        are still ours: else the next commit would pass over them.
        """
        ...
