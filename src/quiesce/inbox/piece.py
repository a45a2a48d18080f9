"""What one call of a handler gets, and what came of it. Nothing here waits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quiesce.inbox.delivered import Delivered, KeyQueue
from quiesce.inbox.record import Record, TopicPartition

Place = tuple[TopicPartition, int]
"""Partition and offset: what tells one record from another."""


def place_of(record: Record) -> Place:
    return record.source, record.offset


@dataclass(slots=True, eq=False)
class Piece:
    """Records in hand together: one, or a batch that lies in order per partition."""

    records: Sequence[Record]
    parts: Sequence[tuple[Delivered, int]]
    """The partitions, and how many of the records are of each, in the order of `records`."""
    of_key: KeyQueue | None = None
    """Of a single record: those of its key, which wait meanwhile."""
    alone: bool = False
    """It may kill the process, so nothing else is in hand with it."""
    retried: bool = False
    """Of a single record: its key had to wait for its time."""
    settled: set[Place] = field(default_factory=set)
    """Those that are done whatever becomes of the others: skipped, or set aside."""

    @property
    def partitions(self) -> Sequence[Delivered]:
        return [part for part, _ in self.parts]

    def shares(self) -> Sequence[tuple[Delivered, Sequence[Record]]]:
        """The records of each partition, without those that are settled."""
        shares = []
        begin = 0
        for part, count in self.parts:
            records: Sequence[Record] = self.records[begin : begin + count]
            if self.settled:
                records = [record for record in records if place_of(record) not in self.settled]
            shares.append((part, records))
            begin += count
        return shares

    def __str__(self) -> str:
        if len(self.records) == 1:
            return str(self.records[0])
        last = self.records[-1]
        return f"{len(self.records)} records, {self.records[0]} to {last}"


@dataclass(frozen=True, slots=True)
class Handled:
    """All of the piece is done."""


@dataclass(frozen=True, slots=True)
class Held:
    """These wait until their instants, and with them all later ones of their keys. The rest of the piece may begin
    again at once."""

    until: Mapping[Place, float]


@dataclass(frozen=True, slots=True)
class Outage:
    """A server is away that the handler needs: no fault of any record. All of it waits until then."""

    until: float


@dataclass(frozen=True, slots=True)
class Split:
    """One of the records fails, nobody knows which: they begin again in smaller pieces."""


@dataclass(frozen=True, slots=True)
class PutBack:
    """An abort, which is not an outcome."""


Outcome = Handled | Held | Outage | Split | PutBack
