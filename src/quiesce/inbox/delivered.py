"""What a consumer has of one partition: what waits, what is in hand, and up to where it is done. Nothing here waits."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf

from quiesce.inbox.beyond import Beyond
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
    retried: bool = False
    """The first one has waited for its time."""


class Delivered:
    """The records of one partition, from their delivery until they are done, for as long as it is ours.

    Only what is not done is kept. The offset to commit is that of the first record that is not done, or the one
    behind the last delivered: contiguous over the records *delivered*, not over their numbers, since compaction
    and transactions leave gaps in the numbers. What is done behind it is committed beside it.
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
        self.in_hand: dict[object, Sequence[Record]] = {}
        """The pieces in hand, each with its records here."""
        self.end = first
        """Behind the last record that was delivered."""
        self.left = 0
        """Records delivered and not done."""
        self.committed = first
        self.handled = 0
        """Records handled whose commit is not confirmed, those behind an unfinished one included."""
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
        """Nothing of it begins any more."""
        self.handed_back: list[Record] = []
        """While it is leaving: what has not begun, and nobody has asked for yet."""
        self.dropped = False
        self.full = False
        self._free_nulls = free_nulls
        self._given_up: list[Record] = []
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
        for records in self.in_hand.values():
            if records[0].offset < place:
                place = records[0].offset
        return min([place, *(record.offset for record in self._given_up)]) if self._given_up else place

    def beyond(self, place: int) -> Beyond:
        """What is done behind this offset, which is not."""
        begun = self.begun
        undone = [*self._given_up, *takewhile(lambda one: one.offset < begun, self.queue)]
        for of_key in self.key_queues.values():
            undone += of_key.records
        for records in self.in_hand.values():
            undone += records
        beyond = Beyond.all_but(place, begun, [record.offset for record in undone])
        if not beyond:
            return beyond
        held = next((record.checksum for record in undone if record.offset == place), None)
        return replace(beyond, held=held)

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

    def confirmed(self, offset: int, handled: int) -> None:
        """The broker has this offset, and so many of the handled records that were not confirmed."""
        self.handled -= handled
        self.committed = max(self.committed, offset)
        for number in [number for number, end in self.numbers.items() if end <= offset]:
            del self.numbers[number]
        if self.troubles:
            self.troubles = {offset: one for offset, one in self.troubles.items() if offset >= self.committed}

    def waiting(self) -> Iterator[Record]:
        """Everything that has not begun."""
        yield from self.queue
        for of_key in self.key_queues.values():
            yield from of_key.records

    def hand_back(self) -> int:
        """Of one that is leaving: gives up all that waits. Returns how many records that is."""
        left = list(self.waiting())
        if left:
            self.queue.clear()
            for of_key in self.key_queues.values():
                of_key.records.clear()
            self.give_up(left)
            self.handed_back += left
        return len(left)

    def give_up(self, records: Sequence[Record]) -> None:
        """These will not be done here, and hold the commit in front of themselves."""
        self.left -= len(records)
        self._given_up += records
