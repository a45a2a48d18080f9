"""A source in memory that follows the port: numbered assignments, commits that are refused once one is over."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from quiesce.errors import CommitRefused, Unavailable
from quiesce.inbox.beyond import Beyond
from quiesce.inbox.record import Batch, Record, TopicPartition
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed


def record(offset: int, partition: int = 0, key: bytes | None = b"key") -> Record:
    return Record("products", partition, offset, key, b"value")


@dataclass
class MemorySource:
    """Delivers `records` from the committed place on. `away`: stretches in which nothing is answered."""

    records: Sequence[Record] = ()
    away: Sequence[tuple[float, float]] = ()
    fetch_hangs: bool = False
    commit_seconds: float = 0.0
    refuses: bool = False
    revoke_bound: float = 5.0
    name: str = "products"
    part: Part = Part.PRODUCERS

    def __post_init__(self) -> None:
        self.assignment = 1
        self.ours_since = {record.source: 1 for record in self.records}
        self.committed: dict[TopicPartition, int] = {}
        self.beyond: dict[TopicPartition, Beyond] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.done_with: list[tuple[int, TopicPartition]] = []
        self.leaving: frozenset[TopicPartition] = frozenset()
        self.let_go: dict[TopicPartition, float] = {}
        self.fulls: list[frozenset[TopicPartition]] = []
        self.fetches = 0
        self.closed: list[Deadline] = []
        self.close_error: Exception | None = None
        self.close_hangs = False
        self.fetch_errors: list[Exception] = []
        self._position: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._changed: Callable[[], None] = lambda: None

    def told(self, partition: TopicPartition) -> list[int]:
        """The offsets that do not come again."""
        place, beyond = self.committed.get(partition, 0), self.beyond.get(partition, Beyond(0))
        return [*range(place), *(offset for offset in range(place, beyond.end) if offset in beyond)]

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def _is_away(self) -> bool:
        return any(begin <= self.now() < end for begin, end in self.away)

    def lose(self, *partitions: TopicPartition) -> None:
        """These partitions go to somebody else; work on the others is not touched."""
        self.assignment += 1
        for partition in partitions:
            self.ours_since.pop(partition, None)
            self._ends.pop(partition, None)
        self.leaving -= set(partitions)
        self._changed()

    def rebalance(self, *partitions: TopicPartition) -> None:
        """These partitions, or all, go and come back: what is not committed is delivered once more."""
        self.assignment += 1
        for partition in partitions or {record.source for record in self.records}:
            self.ours_since[partition] = self.assignment
            self._position[partition] = self.committed.get(partition, 0)
            self._ends.pop(partition, None)
        self._changed()

    def revoke(self, partition: TopicPartition) -> None:
        """The group takes it back, and waits up to the revoke bound for what is in hand."""
        if partition in self.ours_since:
            self.leaving |= {partition}
            self._changed()
            asyncio.get_running_loop().call_later(self.revoke_bound, self._let_go, partition)
            self._look(partition)

    def _look(self, partition: TopicPartition) -> None:
        if partition in self.leaving and partition not in self._ends:
            self._let_go(partition)

    def _let_go(self, partition: TopicPartition) -> None:
        if partition in self.leaving:
            self.let_go[partition] = self.now()
            self.lose(partition)

    # The port.

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self.ours_since)

    def ours(self, assignment: int, partition: TopicPartition) -> bool:
        return not self.closed and self.ours_since.get(partition, assignment + 1) <= assignment

    def watch(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def news(self, consumer: str) -> Sequence[Event]:
        return ()

    async def open(self) -> "MemorySource":
        return self

    async def close(self, deadline: Deadline) -> Closed:
        self.closed.append(deadline)
        if self.close_hangs:
            await asyncio.sleep(deadline.at - asyncio.get_running_loop().time())
            return Closed(forced=True, detail="a rebalance")
        if self.close_error is not None:
            raise self.close_error
        return Closed()

    async def fetch(self, limit: int, *, full: Collection[TopicPartition] = ()) -> Batch:
        assert not self.closed
        self.fetches += 1
        self.fulls.append(frozenset(full))
        if self.fetch_hangs:
            await asyncio.sleep(1e6)
        await asyncio.sleep(0.001)
        if self.fetch_errors:
            raise self.fetch_errors.pop(0)
        if self._is_away():
            raise Unavailable("all brokers are down")
        if not self._next(limit, full):
            await asyncio.sleep(1.0)
        records = self._next(limit, full)
        for record in records:
            self._position[record.source] = self._ends[record.source] = record.offset + 1
        return Batch(records, self.assignment)

    def _next(self, limit: int, full: Collection[TopicPartition]) -> list[Record]:
        return [
            record
            for record in self.records
            if record.source in self.ours_since
            and record.source not in self.leaving
            and record.source not in full
            and record.offset >= self._position.get(record.source, 0)
            and record.offset not in self.beyond.get(record.source, Beyond(0))
        ][:limit]

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        assignment: int,
        deadline: Deadline,
        *,
        beyond: Mapping[TopicPartition, Beyond] | None = None,
    ) -> None:
        assert offsets, "an empty commit"
        left = max(0.0, deadline.remaining(asyncio.get_running_loop().time()))
        await asyncio.sleep(min(left, self.commit_seconds))
        if left < self.commit_seconds:
            raise Unavailable("no answer to the commit by the deadline")
        if self._is_away():
            await asyncio.sleep(deadline.remaining(self.now()))
            raise Unavailable("no answer to the commit")
        if self.refuses:
            raise CommitRefused("the group has gone on, and the client does not know it yet")
        ours = {source: offset for source, offset in offsets.items() if self.ours(assignment, source)}
        for source, offset in ours.items():
            known = self.beyond.get(source, Beyond(offset)).seen_from(offset)
            self.beyond[source] = known = (known | (beyond or {}).get(source, Beyond(offset))).settled()
            ours[source] = known.base
            assert known.base >= self.committed.get(source, 0), "a commit went back"
        if ours:
            self.commits.append(ours)
            self.committed.update(ours)
            for source, offset in ours.items():
                if self._ends.get(source, inf) <= offset:
                    del self._ends[source]
                    self._look(source)
        if lost := offsets.keys() - ours.keys():
            raise CommitRefused(f"not ours any more: {lost}")

    def done(self, assignment: int, partitions: Collection[TopicPartition] | None = None) -> None:
        for partition in self.ours_since.copy() if partitions is None else partitions:
            self.done_with.append((assignment, partition))
            if self.ours(assignment, partition) and self._ends.pop(partition, None) is not None:
                self._position[partition] = self.committed.get(partition, 0)
                self._look(partition)
