"""Starts of records in memory. It passes the contract suite of `CountsStarts`."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from quiesce.inbox.record import Record
from quiesce.inbox.starts import Begun, Suspects

_Place = tuple[str, str, int]


@dataclass(slots=True)
class _Row:
    owner: str = ""
    begun: Begun = field(default_factory=Begun)
    """What its owner has in hand, as it was written down."""


class StartsLog:
    """What outlives the processes: give it to a `MemoryStarts` for each of them."""

    def __init__(self) -> None:
        self.rows: dict[_Place, _Row] = {}


class MemoryStarts:
    """A `CountsStarts` of one process. One that is dropped without `stop` has died."""

    _numbers = count()

    def __init__(self, log: StartsLog | None = None) -> None:
        self._log = log or StartsLog()
        self._owner = f"process {next(self._numbers)}"

    async def began(self, consumer: str, records: Sequence[Record], *, alone: bool = False) -> Sequence[int]:
        await asyncio.sleep(0)
        rows = [self._row(consumer, record) for record in records]
        earlier = [row.begun.suspects.earlier(record.offset) for row, record in zip(rows, records, strict=True)]
        if alone or not any(earlier):
            for row, record in zip(rows, records, strict=True):
                row.begun.begin([record.offset])
        return earlier

    async def ended(self, consumer: str, records: Sequence[Record]) -> None:
        await asyncio.sleep(0)
        for record in records:
            row = self._log.rows.get((consumer, record.topic, record.partition))
            if row is not None and row.owner == self._owner:
                row.begun.end([record.offset])
            elif row is not None:
                row.begun.suspects.lives(self._owner)

    def stop(self) -> None:
        """It ends as it should: what it still has in hand did not kill it."""
        for row in self._log.rows.values():
            if row.owner == self._owner:
                row.begun.end(tuple(row.begun.in_hand))
            else:
                row.begun.suspects.lives(self._owner)

    def _row(self, consumer: str, record: Record) -> _Row:
        row = self._log.rows.setdefault((consumer, record.topic, record.partition), _Row(self._owner))
        if row.owner != self._owner:
            suspects: Suspects = row.begun.suspects
            suspects.died(row.owner, row.begun.with_more(()))
            row.owner, row.begun = self._owner, Begun(suspects)
        row.begun.suspects.lives(self._owner)
        return row
