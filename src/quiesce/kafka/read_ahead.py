"""What the client has fetched and nobody has taken yet, and which partitions to pause for it. Nothing here waits."""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from math import inf

from quiesce.inbox.record import Record, TopicPartition

_PATIENCE = 0.1
"""Seconds that records lie around before their partition is paused. Pausing throws away what the client has read
ahead, so a handler that keeps up is spared it."""


class ReadAhead:
    """Records by partition, each in its order.

    At most `limit` records, and about `limit_bytes`, are fetched ahead for the partitions that flow. A
    partition that is full, since its records may not be taken, is paused alone; it holds `limit` at most
    besides, and what the last call of the client brought. Once everything had to be paused, it flows again when half
    is gone.
    """

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._average = 0.0
        self._queues: dict[TopicPartition, deque[Record]] = {}
        self._waiting_since: dict[TopicPartition, float] = {}
        self._stuck_since = inf
        self._full: frozenset[TopicPartition] = frozenset()
        self._flowing = 0
        self._held = False

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def of(self, partition: TopicPartition) -> int:
        return len(self._queues.get(partition, ()))

    def add(self, runs: Iterable[tuple[TopicPartition, Sequence[Record]]], average_bytes: float, now: float) -> None:
        """`average_bytes`: the size of one of these."""
        self._average = average_bytes
        for partition, records in runs:
            self._queues.setdefault(partition, deque()).extend(records)
            if partition in self._full:
                self._waiting_since.setdefault(partition, now)
            else:
                self._flowing += len(records)

    def take(self, limit: int, full: Collection[TopicPartition], now: float) -> list[list[Record]]:
        """Up to `limit` records, a list of each partition; none of those that are `full` from now on."""
        self._full = frozenset(full)
        self._waiting_since = {one: self._waiting_since.get(one, now) for one in self._full if self.of(one)}
        runs: list[list[Record]] = []
        for partition in [one for one in self._queues if one not in self._full]:
            if limit <= 0:
                break
            queue = self._queues.pop(partition)
            count = min(limit, len(queue))
            limit -= count
            if count == len(queue):
                runs.append(list(queue))
            else:
                if 4 * count < len(queue):
                    runs.append([queue.popleft() for _ in range(count)])
                else:
                    # As a whole: a fifth of what it takes one by one.
                    rest = list(queue)
                    runs.append(rest[:count])
                    queue = deque(rest[count:])
                # Behind the others: it had its turn.
                self._queues[partition] = queue
        self._count()
        return runs

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._queues.pop(partition, None)
            self._waiting_since.pop(partition, None)
        self._count()

    def room(self) -> int:
        """How many more records to ask the client for."""
        return max(0, self._most() - self._flowing)

    def to_pause(self, ours: Collection[TopicPartition], now: float) -> frozenset[TopicPartition] | None:
        """Which partitions the client has to hold now. None: all of them, but not just yet."""
        if self._held and self._flowing > self._most() // 2:
            return frozenset(ours)
        self._held = False
        if self.room():
            self._stuck_since = inf
            return frozenset(one for one in ours if self._has_waited(one, now))
        self._stuck_since = min(self._stuck_since, now)
        self._held = now - self._stuck_since >= _PATIENCE
        return frozenset(ours) if self._held else None

    def _most(self) -> int:
        if self._average * self._limit > self._limit_bytes:
            return max(1, int(self._limit_bytes / self._average))
        return self._limit

    def _has_waited(self, partition: TopicPartition, now: float) -> bool:
        since = self._waiting_since.get(partition, inf)
        return now - since >= _PATIENCE or (since < inf and self.of(partition) >= self._limit)

    def _count(self) -> None:
        self._flowing = sum(len(queue) for one, queue in self._queues.items() if one not in self._full)
