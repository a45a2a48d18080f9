"""Starts of records, counted in PostgreSQL, where the count outlives the process."""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from uuid import uuid4

import asyncpg

from quiesce.errors import QuiesceError, Unavailable
from quiesce.inbox.record import Record
from quiesce.inbox.starts import Begun, Suspects
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.postgres.borrowing import Borrowing
from quiesce.postgres.driver import Pool
from quiesce.postgres.start_table import STATEMENT, Place, StartTable

_LOG = logging.getLogger("quiesce.postgres")

_TURNS = 5
"""How often a partition may be taken from us during one call."""


class RecordStarts:
    """A `CountsStarts` on the table `record_start`. One small write a batch, and none that waits for the disk.

    What a process has in hand is written down by partition before it is begun. A process that finds another's note
    knows that those records were begun and never ended. An end by a stop, an abort or a rebalance is no death: the
    consumer says `ended`, and `close` says it of all that is left, but for what the consumer said `keep` of.

    `dsn_or_pool`: a DSN, of which it keeps one connection; or an open `asyncpg.Pool`, of which it takes one for the
    time of each statement.
    """

    def __init__(self, dsn_or_pool: "str | Pool", *, name: str = "record-starts", connect_timeout: float = 5.0) -> None:
        self.name = name
        self.part = Part.POOLS
        self._owner = str(uuid4())
        self._places: dict[Place, Begun] = {}
        self._kept: dict[Place, set[int]] = {}
        """What ends this process: `close` does not take it for over."""
        self._in_turn = asyncio.Lock()
        self._told = False
        self._borrowing = Borrowing(dsn_or_pool, name, connect_timeout)
        self._table = StartTable(self._borrowing, self._owner)

    async def open(self) -> "RecordStarts":
        """Makes sure that the table is there.

        Raises:
            Unavailable: the server cannot be reached now.
            SchemaMissing: the table is not there. The message names the command.
            SettingsError: the DSN is wrong, or the server refuses the user.
        """
        self._borrowing.reopen()
        await self._table.look()
        return self

    async def close(self, deadline: Deadline) -> Closed:
        """Says that what is in hand still did not kill the process, by the deadline. Safe to call twice."""
        left = {place: begun for place, begun in self._places.items() if begun.noted}
        kept, self._kept = self._kept, {}
        self._places = {}
        if left:
            for place, begun in left.items():
                begun.end(begun.in_hand - kept.get(place, set()))
            bound = min(STATEMENT, max(0.0, deadline.remaining(time.monotonic())))
            try:
                async with asyncio.timeout(bound):
                    # Cut a little before a cancel would come: what was sent to a server that hangs is carried out once
                    # it goes on, and a cancel would ask it not to.
                    await self._note_over(left, kept, 0.9 * bound)
            except (QuiesceError, asyncpg.PostgresError, TimeoutError) as error:
                told = "%s: cannot note that this stop is no death, of records of %d partitions: %s"
                _LOG.warning(told, self.name, len(left), error)
        return Closed(forced=bool(await self._borrowing.close(deadline)))

    async def began(self, consumer: str, records: Sequence[Record], *, alone: bool = False) -> Sequence[int]:
        """See `CountsStarts.began`.

        Raises:
            Unavailable: the database does not answer. Nothing is noted.
            SchemaMissing: the table is not there.
        """
        if not records:
            return []
        offsets = _by_place(consumer, records)
        async with self._in_turn:
            # Who is begun alone may be set aside for it: the count shall be as it is now.
            new = [place for place in offsets if alone or place not in self._places]
            for _ in range(_TURNS):
                if new:
                    await self._table.take_over(new, self._places)
                earlier = self._earlier(consumer, records, offsets)
                if any(earlier) and not alone:
                    return earlier
                new = await self._note(offsets)
                if not new:
                    for place, begun in offsets.items():
                        self._places[place].begin(begun)
                    return earlier
        raise Unavailable(f"{self.name}: another process takes the same partitions again and again")

    def keep(self, consumer: str, records: Sequence[Record]) -> None:
        """See `KeepsStarts.keep`."""
        for place, offsets in _by_place(consumer, records).items():
            self._kept.setdefault(place, set()).update(offsets)

    async def ended(self, consumer: str, records: Sequence[Record]) -> None:
        """See `CountsStarts.ended`. It never raises."""
        if self._kept:
            for place, offsets in _by_place(consumer, records).items():
                self._kept.get(place, set()).difference_update(offsets)
        # Told record by record, mostly while others are in hand: then there is nothing to write, and nobody waits.
        idle = [
            place
            for place, offsets in _by_place(consumer, records).items()
            if (begun := self._places.get(place)) is not None and begun.end(offsets)
        ]
        if idle:
            async with self._in_turn:
                await self._note_idle(idle)

    async def probe(self) -> None:
        """See `AnswersProbes.probe`."""
        await self._table.look()

    async def _note_over(self, left: Mapping[Place, Begun], kept: Mapping[Place, set[int]], within: float) -> None:
        lost = await self._table.write({place: (begun, begun.with_more(())) for place, begun in left.items()}, within)
        # Where something did end this process, its successor is right to take it for dead.
        if alive := [place for place in lost if not kept.get(place)]:
            await self._table.withdraw(alive, within)

    async def _note_idle(self, places: Iterable[Place]) -> None:
        known = ((place, self._places.get(place)) for place in places)
        # More may have been begun meanwhile.
        notes = {place: (begun, None) for place, begun in known if begun is not None and not begun.in_hand}
        if not notes:
            return
        try:
            if lost := await self._table.write(notes):
                for place in lost:
                    self._places.pop(place, None)
                await self._table.withdraw(lost)
        except (QuiesceError, asyncpg.PostgresError) as error:
            # The next note of the partition makes up for it. A process that dies before makes its successor careful
            # with records that are not to blame, and no more.
            if not self._told:
                _LOG.warning("%s: cannot note that records ended: %s", self.name, error)
            self._told = True
        else:
            self._told = False

    def _earlier(self, consumer: str, records: Sequence[Record], places: Iterable[Place]) -> Sequence[int]:
        suspects = {place: begun.suspects for place in places if (begun := self._places[place]).suspects}
        if not suspects:
            return [0] * len(records)
        unsuspected = Suspects()
        return [
            suspects.get(Place(consumer, record.topic, record.partition), unsuspected).earlier(record.offset)
            for record in records
        ]

    async def _note(self, offsets: Mapping[Place, Sequence[int]]) -> list[Place]:
        """Writes that these are in hand too. Returns the partitions that have another owner by now."""
        known = {place: self._places[place] for place in offsets}
        return await self._table.write(
            {place: (begun, begun.with_more(offsets[place])) for place, begun in known.items()}
        )


def _by_place(consumer: str, records: Sequence[Record]) -> dict[Place, list[int]]:
    if len(records) == 1:
        return {Place(consumer, records[0].topic, records[0].partition): [records[0].offset]}
    found: dict[tuple[str, int], list[int]] = {}
    for record in records:
        source = (record.topic, record.partition)
        if source in found:
            found[source].append(record.offset)
        else:
            found[source] = [record.offset]
    return {Place(consumer, topic, number): offsets for (topic, number), offsets in found.items()}
