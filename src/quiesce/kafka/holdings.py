"""What the consumer's thread and the loop share, under one lock. Each side is in here for a short stretch."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from quiesce.inbox.assignment import Assignment
from quiesce.inbox.events import AssignmentChanged
from quiesce.inbox.record import Batch, Record, TopicPartition
from quiesce.kafka.commit import Commit, Commits
from quiesce.kafka.read_ahead import ReadAhead
from quiesce.kafka.tails import Tails
from quiesce.lifecycle.events import Event

Untold = Callable[[str], Event]
"""An event that lacks the consumer's name."""

_MOST_UNTOLD = 1000
"""Events kept for a watcher that does not ask."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one turn of the thread does."""

    partitions: frozenset[TopicPartition]
    room: int
    paused: frozenset[TopicPartition] | None
    """None: neither fetch nor pause yet, records lie ready that may be taken in a moment."""
    busy: bool
    """A commit may come at any time."""


class Holdings:
    """Partitions, records fetched ahead, what is in hand, commits on their way.

    `changed` is called, on whichever thread, when partitions came, are about to go or went.
    """

    def __init__(self, limit: int, limit_bytes: int, changed: Callable[[], None]) -> None:
        self.lock = threading.Condition()
        self._changed = changed
        self._assignment = Assignment()
        self._ahead = ReadAhead(limit, limit_bytes)
        self._commits = Commits()
        self._rewinds: dict[TopicPartition, int | None] = {}
        self._leaving: frozenset[TopicPartition] = frozenset()
        self._tails = Tails()
        self._untold: deque[Untold] = deque(maxlen=_MOST_UNTOLD)

    # What the loop does.

    def take(self, limit: int, full: Collection[TopicPartition], now: float) -> Batch:
        """Up to `limit` records that are ready; they are in hand from now on."""
        with self.lock:
            runs = self._ahead.take(limit, full, now)
            number = self._assignment.hand_out(*runs)
            self.lock.notify_all()
        return Batch(runs[0] if len(runs) == 1 else list(chain.from_iterable(runs)), number)

    def done(self, number: int, partitions: Collection[TopicPartition] | None) -> None:
        """Nothing of this is in hand any more. What was not committed will be fetched again."""
        with self.lock:
            back = self._assignment.done(number, partitions)
            self._rewinds.update(back)
            self._ahead.drop(back)
            self._tails.forget(back)
            self.lock.notify_all()

    def submit(self, commit: Commit) -> None:
        with self.lock:
            self._commits.add(commit)
            self.lock.notify_all()

    def news(self, consumer: str) -> Sequence[Event]:
        with self.lock:
            untold, self._untold = self._untold, deque[Untold](maxlen=_MOST_UNTOLD)
        return [event(consumer) for event in untold]

    # What both ask.

    @property
    def number(self) -> int:
        return self._assignment.number

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        with self.lock:
            return frozenset(self._assignment.partitions)

    @property
    def leaving(self) -> frozenset[TopicPartition]:
        return self._leaving

    def ours(self, number: int, partition: TopicPartition) -> bool:
        with self.lock:
            return self._assignment.is_ours(partition, number)

    def read_ahead(self) -> int:
        with self.lock:
            return len(self._ahead)

    # What the thread does.

    def plan(self, now: float) -> Plan:
        with self.lock:
            ours = frozenset(self._assignment.partitions)
            busy = self._assignment.in_hand() or bool(self._commits)
            return Plan(ours, self._ahead.room(), self._ahead.to_pause(ours, now), busy)

    def receive(self, runs: Mapping[TopicPartition, Sequence[Record]], average_bytes: float, now: float) -> None:
        """Makes records ready. What is not ours, or is to be fetched anew from further back, is dropped.

        librdkafka holds back what it fetched before a rebalance; were one to slip through, it changes nothing.
        """
        with self.lock:
            ours = self._assignment.partitions - self._rewinds.keys()
            self._tails.forget(runs)
            self._ahead.add([(one, run) for one, run in runs.items() if one in ours], average_bytes, now)

    def at_end(self, partition: TopicPartition, offset: int) -> None:
        """The client has reached the end of the partition, which is at this offset now."""
        with self.lock:
            if partition in self._assignment.partitions and partition not in self._rewinds:
                self._tails.at_end(partition, offset)

    def tails(self) -> dict[TopicPartition, int]:
        """Ends that lie beyond what is committed, with nothing but gaps between."""
        with self.lock:
            return self._tails.found(lambda one: not self._assignment.in_hand([one]) and not self._ahead.of(one))

    def next_commit(self) -> Commit | None:
        with self.lock:
            return self._commits.next(self._assignment)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self.lock:
            self._assignment.committed(offsets)
            self._tails.committed(offsets)

    def again(self, commit: Commit) -> None:
        with self.lock:
            self._commits.again(commit)

    def abandon_commits(self) -> None:
        with self.lock:
            self._commits.abandon()

    def rewinds(self) -> Mapping[TopicPartition, int]:
        """Where the client has to go back to."""
        with self.lock:
            return {one: offset for one, offset in self._rewinds.items() if offset is not None}

    def rewound(self, partition: TopicPartition, offset: int) -> None:
        with self.lock:
            # Unless somebody has put away more of it meanwhile.
            if self._rewinds.get(partition) == offset:
                del self._rewinds[partition]

    def gained(self, partitions: Collection[TopicPartition], begin: Mapping[TopicPartition, int]) -> None:
        """`begin`: the offsets that reading begins at. Of a partition that lacks among them nothing is taken
        until `begin_at`."""
        with self.lock:
            self._assignment.gained(partitions)
            self._rewinds.update({one: None for one in partitions if one not in begin})
            self._tails.committed(begin)
            self._tell(lost=False)

    def begin_at(self, partition: TopicPartition, offset: int) -> None:
        with self.lock:
            if self._rewinds.get(partition, offset) is None:
                self._rewinds[partition] = offset
                self._tails.committed({partition: offset})

    def anew(self, partition: TopicPartition) -> None:
        """Its records are others than before: what is in hand of it is not to be committed."""
        with self.lock:
            self._assignment.gone([partition])
            self._assignment.gained([partition])
            self._ahead.drop([partition])
            self._tails.gone([partition])
            self._rewinds.pop(partition, None)
        self._changed()

    def leave(self, partitions: Collection[TopicPartition]) -> None:
        """The group wants these back: nothing more of them is handed out."""
        with self.lock:
            self._leaving = frozenset(partitions)
            self._ahead.drop(partitions)
        self._changed()

    def in_hand(self, partitions: Collection[TopicPartition]) -> bool:
        with self.lock:
            return self._assignment.in_hand(partitions)

    def gone(self, partitions: Collection[TopicPartition], lost: bool) -> None:
        with self.lock:
            self._assignment.gone(partitions)
            self._ahead.drop(partitions)
            self._leaving = frozenset()
            self._tails.gone(partitions)
            for partition in partitions:
                self._rewinds.pop(partition, None)
            self._tell(lost)

    def tell(self, event: Untold) -> None:
        with self.lock:
            self._untold.append(event)
        self._changed()

    def _tell(self, lost: bool) -> None:
        number, count = self._assignment.number, len(self._assignment.partitions)
        self._untold.append(lambda consumer: AssignmentChanged(consumer, number, count, lost))
        self._changed()
