"""A topic, a group and its members in memory. It passes the contract suite of `Source`."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Self

from quiesce.errors import CommitRefused, IntakeClosed, Unavailable
from quiesce.inbox.assignment import Assignment
from quiesce.inbox.beyond import Beyond
from quiesce.inbox.events import AssignmentChanged
from quiesce.inbox.record import Batch, Record, TopicPartition
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed


class MemoryGroup:
    """A topic and one consumer group on it. Members that come and go share the partitions at once, except
    that a member is waited for, up to its `revoke_bound`, while it has something of a partition in hand.

    While it is `silent` nothing is fetched and no commit is answered.
    """

    def __init__(self, topic: str = "events", partitions: int = 2) -> None:
        self.topic = topic
        self.silent = False
        self.committed: dict[TopicPartition, int] = {}
        self.done_beyond: dict[TopicPartition, Beyond] = {}
        self._logs: dict[TopicPartition, list[Record]] = {
            TopicPartition(topic, number): [] for number in range(partitions)
        }
        self._owners: dict[TopicPartition, MemorySource] = {}
        self._members: list[MemorySource] = []

    def append(self, partition: int, *values: bytes | None, key: bytes | None = None) -> None:
        log = self._logs[TopicPartition(self.topic, partition)]
        for value in values:
            log.append(Record(self.topic, partition, len(log), key, value))
        self._news()

    def silence(self) -> None:
        self.silent = True

    def speak(self) -> None:
        self.silent = False
        self._news()

    def lose(self, member: "MemorySource") -> None:
        """The group has gone on without this member, which hears of it now. It joins again at once."""
        lost = [partition for partition, owner in self._owners.items() if owner is member]
        for partition in lost:
            del self._owners[partition]
        member.gone(lost, lost=True)
        self._members.remove(member)
        self._members.insert(0, member)
        self.share()

    def join(self, member: "MemorySource") -> None:
        self._members.append(member)
        self.share()

    def leave(self, member: "MemorySource") -> None:
        self._members.remove(member)
        for partition in [one for one, owner in self._owners.items() if owner is member]:
            del self._owners[partition]
        self.share()

    def share(self) -> None:
        """Gives each partition to the member it should have, as far as its present owner lets it go."""
        if not self._members:
            return
        moved: dict[MemorySource, list[TopicPartition]] = {}
        for number, partition in enumerate(self._logs):
            owner = self._members[number % len(self._members)]
            present = self._owners.get(partition)
            if present is not owner and (present is None or present.lets_go(partition)):
                self._owners[partition] = owner
                moved.setdefault(owner, []).append(partition)
        for owner, partitions in moved.items():
            owner.gained(partitions)

    def keep(
        self, offsets: Mapping[TopicPartition, int], beyond: Mapping[TopicPartition, Beyond]
    ) -> dict[TopicPartition, int]:
        """Commits; returns the offsets that are committed, which may be further than these."""
        for partition, offset in offsets.items():
            known = self.done_beyond.get(partition, Beyond(offset)).seen_from(offset)
            known = (known | beyond.get(partition, Beyond(offset))).settled()
            self.committed[partition], self.done_beyond[partition] = known.base, known
        return {partition: self.committed[partition] for partition in offsets}

    def behind(self, partition: TopicPartition, offset: int, limit: int) -> Sequence[Record]:
        """The next records, from the offset on, that are not done."""
        done = self.done_beyond.get(partition, Beyond(0))
        left = (record for record in self._logs[partition][offset:] if record.offset not in done)
        return list(islice(left, limit))

    def _news(self) -> None:
        for member in self._members:
            member.appended()


class MemorySource:
    """A `Source` on a `MemoryGroup`. Its waits are the loop's, so it works on a virtual clock too."""

    def __init__(self, group: MemoryGroup, *, name: str = "memory-consumer", revoke_bound: float = 5.0) -> None:
        self.name = name
        self.part = Part.PRODUCERS
        self._group = group
        self.revoke_bound = revoke_bound
        self._assignment = Assignment()
        self._positions: dict[TopicPartition, int] = {}
        self._asked_back: dict[TopicPartition, float] = {}
        self._faults: deque[Exception] = deque()
        self._news = asyncio.Event()
        self._open = False
        self._changed: Callable[[], None] = lambda: None
        self._untold: list[tuple[int, int, bool]] = []

    async def open(self) -> Self:
        self._open = True
        self._group.join(self)
        return self

    def fail_next_fetch(self, error: Exception) -> None:
        self._faults.append(error)
        self._news.set()

    async def fetch(self, limit: int, *, full: Collection[TopicPartition] = ()) -> Batch:
        """Raises IntakeClosed when it is not open, and what `fail_next_fetch` was given."""
        try:
            async with asyncio.timeout(1.0):
                while not (batch := self._take(limit, full)):
                    self._news.clear()
                    await self._news.wait()
                return batch
        except TimeoutError:
            return self._take(0)

    def _take(self, limit: int, full: Collection[TopicPartition] = ()) -> Batch:
        if not self._open:
            raise IntakeClosed(f"{self.name} is not open: nothing can be fetched")
        if self._faults:
            raise self._faults.popleft()
        runs: list[Sequence[Record]] = []
        for partition, position in self._positions.items():
            if not self._group.silent and partition not in self._asked_back and partition not in full:
                run = self._group.behind(partition, position, limit - sum(map(len, runs)))
                runs.append(run)
                if run:
                    self._positions[partition] = run[-1].offset + 1
        number = self._assignment.hand_out(*runs)
        return Batch([record for run in runs for record in run], number)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        assignment: int,
        deadline: Deadline,
        *,
        beyond: Mapping[TopicPartition, Beyond] | None = None,
    ) -> None:
        if self._group.silent and self._open:
            left = deadline.remaining(asyncio.get_running_loop().time())
            await asyncio.sleep(min(left, 3600.0))
            raise Unavailable(f"{self.name}: no answer to a commit by the deadline")
        await asyncio.sleep(0)
        ours = self._assignment.ours(offsets, assignment) if self._open else {}
        ours = self._group.keep(ours, beyond or {})
        self._assignment.committed(ours)
        self._group.share()
        if refused := offsets.keys() - ours.keys():
            names = ", ".join(f"{topic}[{number}]" for topic, number in sorted(refused))
            raise CommitRefused(f"offsets of {names} were not committed: not ours any more")

    def done(self, assignment: int, partitions: Collection[TopicPartition] | None = None) -> None:
        self._positions.update(self._assignment.done(assignment, partitions))
        self._group.share()
        self._news.set()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._assignment.partitions)

    @property
    def leaving(self) -> frozenset[TopicPartition]:
        return frozenset(self._asked_back)

    def ours(self, assignment: int, partition: TopicPartition) -> bool:
        return self._open and self._assignment.is_ours(partition, assignment)

    def watch(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def news(self, consumer: str) -> Sequence[Event]:
        untold, self._untold = self._untold, []
        return [AssignmentChanged(consumer, *one) for one in untold]

    async def close(self, deadline: Deadline) -> Closed:
        if self._open:
            self._open = False
            self._news.set()
            self.gone(list(self._positions))
            self._group.leave(self)
        return Closed()

    # What the group tells.

    def appended(self) -> None:
        self._news.set()

    def gained(self, partitions: Sequence[TopicPartition]) -> None:
        self._assignment.gained(partitions)
        for partition in partitions:
            self._positions[partition] = self._group.committed.get(partition, 0)
        self._tell(lost=False)

    def gone(self, partitions: Sequence[TopicPartition], lost: bool = False) -> None:
        self._assignment.gone(partitions)
        for partition in partitions:
            self._positions.pop(partition, None)
            self._asked_back.pop(partition, None)
        self._tell(lost)

    def _tell(self, lost: bool) -> None:
        self._untold.append((self._assignment.number, len(self._assignment.partitions), lost))
        self._news.set()
        asyncio.get_running_loop().call_soon(self._changed)

    def lets_go(self, partition: TopicPartition) -> bool:
        """Whether the group may have the partition now; if not, it asks again when that has changed."""
        loop = asyncio.get_running_loop()
        if self._assignment.in_hand([partition]):
            if partition not in self._asked_back:
                self._asked_back[partition] = loop.time() + self.revoke_bound
                loop.call_soon(self._changed)
                if self.revoke_bound < inf:
                    loop.call_later(self.revoke_bound, self._group.share)
            if loop.time() < self._asked_back[partition]:
                return False
        self.gone([partition])
        return True
