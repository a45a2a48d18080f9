"""A source in memory that follows the port: numbered assignments, commits that are refused once one is over."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quiesce.errors import CommitRefused, Unavailable
from quiesce.inbox.record import Batch, Record, TopicPartition
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed


def record(offset: int, partition: int = 0) -> Record:
    return Record("products", partition, offset, b"key", b"value")


@dataclass
class MemorySource:
    """Delivers `records` from the committed place on. `away`: stretches in which nothing is answered."""

    records: Sequence[Record] = ()
    away: Sequence[tuple[float, float]] = ()
    fetch_hangs: bool = False
    commit_seconds: float = 0.0
    name: str = "products"
    part: Part = Part.PRODUCERS

    def __post_init__(self) -> None:
        self.assignment = 1
        self.ours_since = {record.source: 1 for record in self.records}
        self.committed: dict[TopicPartition, int] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.done_with: list[int] = []
        self.fetches = 0
        self.closed: list[Deadline] = []
        self.close_error: Exception | None = None
        self.fetch_errors: list[Exception] = []
        self._position: dict[TopicPartition, int] = {}

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def _is_away(self) -> bool:
        return any(begin <= self.now() < end for begin, end in self.away)

    def lose(self, *partitions: TopicPartition) -> None:
        """These partitions go to somebody else; work on the others is not touched."""
        self.assignment += 1
        for partition in partitions:
            self.ours_since.pop(partition, None)

    def rebalance(self, *partitions: TopicPartition) -> None:
        """These partitions, or all, go and come back: what is not committed is delivered once more."""
        self.assignment += 1
        for partition in partitions or {record.source for record in self.records}:
            self.ours_since[partition] = self.assignment
            self._position[partition] = self.committed.get(partition, 0)

    async def open(self) -> "MemorySource":
        return self

    async def close(self, deadline: Deadline) -> Closed:
        self.closed.append(deadline)
        if self.close_error is not None:
            raise self.close_error
        return Closed()

    async def fetch(self, limit: int) -> Batch:
        assert not self.closed
        self.fetches += 1
        if self.fetch_hangs:
            await asyncio.sleep(1e6)
        await asyncio.sleep(0.001)
        if self.fetch_errors:
            raise self.fetch_errors.pop(0)
        if self._is_away():
            raise Unavailable("all brokers are down")
        records = [
            record
            for record in self.records
            if record.source in self.ours_since and record.offset >= self._position.get(record.source, 0)
        ][:limit]
        for record in records:
            self._position[record.source] = record.offset + 1
        if not records:
            await asyncio.sleep(1.0)
        return Batch(records, self.assignment)

    async def commit(self, offsets: Mapping[TopicPartition, int], assignment: int, deadline: Deadline) -> None:
        assert offsets, "an empty commit"
        await asyncio.sleep(self.commit_seconds)
        if self._is_away():
            await asyncio.sleep(deadline.remaining(self.now()))
            raise Unavailable("no answer to the commit")
        lost = {source for source in offsets if assignment < self.ours_since.get(source, assignment + 1)}
        ours = {source: offset for source, offset in offsets.items() if source not in lost}
        for source, offset in ours.items():
            assert offset >= self.committed.get(source, 0), "a commit went back"
        if ours:
            self.commits.append(ours)
            self.committed.update(ours)
        if lost:
            raise CommitRefused(f"not ours any more: {lost}")

    def done(self, assignment: int) -> None:
        self.done_with.append(assignment)
