"""What a consumer has of one partition: what waits, what is in hand, and up to where it is done. Nothing here waits."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Record, TopicPartition

OrderKey = bytes | int | None
"""What order is kept by: a record's key, or, where records without a key are free of order, its own offset."""


@dataclass(slots=True)
class Trouble:
    """What has gone wrong with a record so far."""

    tries: int = 0
    """Attempts that failed."""
    failures: int = 0
    """The same, and the tries that failed for an outage: what the wait grows by."""
    timeouts: int = 0
    """Tries that ended in a bare `TimeoutError`, or at the handler's bound: nobody knows whose fault that was."""
    worked: int | None = None
    """How much had been handled when it was first cancelled at the handler's bound; None before that."""
    reason: Reason | None = None
    """It is given up for this reason, and waits to be set aside."""


@dataclass(slots=True, eq=False)
class KeyQueue:
    """The records of one key that wait, in order: behind one in hand, or for their time."""

    part: "Delivered"
    key: OrderKey
    records: deque[Record] = field(default_factory=deque)
    in_hand: bool = False
    until: float = -inf
    """The instant before which the first one may not begin."""
    limit: float = inf
    """How many may wait before nothing above them begins any more."""


class Delivered:
    """The records of one partition, from their delivery until they are done, for as long as it is ours.

    Only what is not done is kept. The offset to commit is that of the first record that is not done, or the one
    behind the last delivered: contiguous over the records *delivered*, not over their numbers, since compaction
    and transactions leave gaps in the numbers.
    """

    def __init__(self, source: TopicPartition, number: int, first: int, *, free_nulls: bool) -> None:
        self.source = source
        self.newest = number
        """The assignment number of the last delivery. It is ours without a break since the first one."""
        self.numbers: dict[int, int] = {}
        """The numbers under which something was handed out that is not committed, and their ends."""
        self.queue: deque[Record] = deque()
        """Neither begun nor waiting in the queue of a key, in order."""
        self.key_queues: dict[OrderKey, KeyQueue] = {}
        """Only of keys of which something waits, or is in hand by itself."""
        self.in_hand: dict[object, int] = {}
        """The pieces in hand, each with its first offset here."""
        self.end = first
        """Behind the last record that was delivered and will be done here."""
        self.left = 0
        """Records delivered and not done."""
        self.committed = first
        self.handled = 0
        """Records handled whose commit is not confirmed."""
        self.troubles: dict[int, Trouble] = {}
        self.unchecked_from: float = inf
        """From this offset on nobody has asked yet whether a record has killed a process."""
        self.suspect_until = -1
        """Records below this offset begin alone: one of them may kill the process."""
        self.busy = False
        """A batch of it is in hand."""
        self.until = -inf
        """The instant before which no batch of it may begin."""
        self.most_at_once: int | None = None
        """After a batch failed: how many records the next one may have, up to `narrow_until`."""
        self.narrow_until = -1
        self.begun = first
        """Behind the last record that has begun."""
        self.leaving = False
        self.finish_below: float = -inf
        """While it is leaving: what waits below this offset may still begin."""
        self.handed_back: list[Record] = []
        """While it is leaving: what will not begin any more, and nobody has asked for yet."""
        self.dropped = False
        self.full = False
        self.queue_limit: float = inf
        """Of a key that is new here, see `Window.limit_queues`."""
        self._free_nulls = free_nulls
        self._marks: deque[tuple[int, int, int]] = deque()
        self._count = self._bytes = 0

    def order_key(self, record: Record) -> OrderKey:
        return record.offset if record.key is None and self._free_nulls else record.key

    def deliver(self, records: Sequence[Record], number: int) -> int:
        """Adds records in the order in which they came; returns how many. What came before is not taken twice."""
        if records[0].offset < self.end:
            records = [record for record in records if record.offset >= self.end]
            if not records:
                return 0
        self._marks.append((records[0].offset, self._count, self._bytes))
        self._count += len(records)
        self._bytes += sum([len(record.value or b"") for record in records])
        self.left += len(records)
        self.queue.extend(records)
        self.newest = number
        self.end = self.numbers[number] = records[-1].offset + 1
        return len(records)

    def take(self, limit: int) -> list[Record]:
        """The next records that may begin, at most so many; those of a key that waits go into its queue."""
        queue = self.queue
        if not self.key_queues and self.unchecked_from == inf:
            if 4 * limit < len(queue):
                return [queue.popleft() for _ in range(limit)]
            # As a whole: a fifth of what it takes one by one.
            records = list(queue)
            queue.clear()
            queue.extend(records[limit:])
            return records[:limit]
        taken: list[Record] = []
        while len(taken) < limit and self.next_is_free():
            taken.append(queue.popleft())
        return taken

    def next_is_free(self) -> bool:
        """Whether the first record of the queue may begin, once those of keys that wait are out of its way."""
        while self.queue and self.queue[0].offset < self.unchecked_from:
            of_key = self.key_queues.get(self.order_key(self.queue[0])) if self.key_queues else None
            if of_key is None:
                return True
            if len(of_key.records) >= of_key.limit and of_key.until == -inf:
                # What waits for its next attempt holds up nobody: it would not be done in time in any case.
                return False
            of_key.records.append(self.queue.popleft())
        return False

    def place(self) -> int:
        """The offset that may be committed: nothing before it is left to do."""
        place = self.end
        if self.queue and self.queue[0].offset < place:
            place = self.queue[0].offset
        for of_key in self.key_queues.values():
            if of_key.records and of_key.records[0].offset < place:
                place = of_key.records[0].offset
        for first in self.in_hand.values():
            if first < place:
                place = first
        return place

    def ahead(self) -> int:
        """How many records were delivered from the first one that is not done on, rounded up to a delivery.

        So many come again after a crash, besides those whose commit is on its way.
        """
        return self.extent()[0]

    def extent(self) -> tuple[int, int]:
        """The same, and how many bytes their values have."""
        place = self.place()
        while len(self._marks) > 1 and self._marks[1][0] <= place:
            self._marks.popleft()
        if place >= self.end:
            return 0, 0
        _, count, size = self._marks[0]
        return self._count - count, self._bytes - size

    def confirmed(self, offset: int) -> int:
        """The broker has this offset. Returns how many records were handled since the last time."""
        self.committed = max(self.committed, offset)
        for number in [number for number, end in self.numbers.items() if end <= offset]:
            del self.numbers[number]
        if self.troubles:
            self.troubles = {offset: one for offset, one in self.troubles.items() if offset >= self.committed}
        handled, self.handled = self.handled, 0
        return handled

    def waiting(self) -> Iterator[Record]:
        """Everything that has not begun."""
        yield from self.queue
        for of_key in self.key_queues.values():
            yield from of_key.records

    def hand_back(self) -> int:
        """Of one that is leaving: gives up what waits and will not begin here. Returns how many records that is.

        What waits below the last record that has begun still begins, so that it holds back the commit of nothing that
        was done above it. But nothing is done any more behind the first record that cannot begin now.
        """
        limit = min(self.finish_below, self.unchecked_from)
        if self.until > -inf and self.queue:
            limit = min(limit, self.queue[0].offset)
        for of_key in self.key_queues.values():
            if of_key.until > -inf and of_key.records:
                limit = min(limit, of_key.records[0].offset)
        if self.suspect_until >= 0:
            # A suspect may take all that is done here with it.
            limit = min([limit, *(one.offset for one in self.waiting() if one.offset < self.suspect_until)])
        left = [record for record in self.waiting() if record.offset >= limit]
        if left:
            for of_key in self.key_queues.values():
                of_key.records = deque(record for record in of_key.records if record.offset < limit)
            self.queue = deque(record for record in self.queue if record.offset < limit)
            self.give_up(left)
            self.handed_back += left
        return len(left)

    def give_up(self, records: Sequence[Record]) -> None:
        """These will not be done here: they hold the commit in front of themselves, and nothing behind them begins."""
        self.left -= len(records)
        self.end = min([self.end, *(record.offset for record in records)])
        self.finish_below = min(self.finish_below, self.end)
