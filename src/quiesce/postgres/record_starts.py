"""Starts of records, counted in PostgreSQL, where the count outlives the process."""

import asyncio
import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import asyncpg

from quiesce.errors import QuiesceError, Unavailable
from quiesce.inbox.record import Record
from quiesce.inbox.starts import Begun, Stretch, Suspects
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.postgres.borrowing import Borrowing
from quiesce.postgres.driver import AnyConnection, Pool
from quiesce.postgres.start_statements import APPEAR, LOOK, NOTE, TAKE

_LOG = logging.getLogger("quiesce.postgres")

_STATEMENT = 5.0
"""Seconds for one statement."""
_TURNS = 5
"""How often a partition may be taken from us during one call."""


class _Place(NamedTuple):
    consumer: str
    topic: str
    partition: int


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
        self._places: dict[_Place, Begun] = {}
        self._kept: dict[_Place, set[int]] = {}
        """What ends this process: `close` does not take it for over."""
        self._in_turn = asyncio.Lock()
        self._told = False
        self._borrowing = Borrowing(dsn_or_pool, name, connect_timeout)

    async def open(self) -> "RecordStarts":
        """Makes sure that the table is there.

        Raises:
            Unavailable: the server cannot be reached now.
            SchemaMissing: the table is not there. The message names the command.
            SettingsError: the DSN is wrong, or the server refuses the user.
        """
        self._borrowing.reopen()
        await self._look(())
        return self

    async def close(self, deadline: Deadline) -> Closed:
        """Says that what is in hand still did not kill the process, by the deadline. Safe to call twice."""
        left = {place: begun for place, begun in self._places.items() if begun.noted}
        kept, self._kept = self._kept, {}
        self._places = {}
        if left:
            for place, begun in left.items():
                begun.end(begun.in_hand - kept.get(place, set()))
            bound = min(_STATEMENT, deadline.remaining(time.monotonic()))
            try:
                async with asyncio.timeout(bound):
                    lost = await self._write({place: (begun, begun.with_more(())) for place, begun in left.items()})
                    # Where something did end this process, its successor is right to take it for dead.
                    if alive := [place for place in lost if not kept.get(place)]:
                        await self._withdraw(alive)
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
                    await self._take_over(new)
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

    async def _note_idle(self, places: Iterable[_Place]) -> None:
        known = ((place, self._places.get(place)) for place in places)
        # More may have been begun meanwhile.
        notes = {place: (begun, None) for place, begun in known if begun is not None and not begun.in_hand}
        if not notes:
            return
        try:
            if lost := await self._write(notes):
                await self._withdraw(lost)
        except (QuiesceError, asyncpg.PostgresError) as error:
            # The next note of the partition makes up for it. A process that dies before makes its successor careful
            # with records that are not to blame, and no more.
            if not self._told:
                _LOG.warning("%s: cannot note that records ended: %s", self.name, error)
            self._told = True
        else:
            self._told = False

    def _earlier(self, consumer: str, records: Sequence[Record], places: Iterable[_Place]) -> Sequence[int]:
        suspects = {place: begun.suspects for place in places if (begun := self._places[place]).suspects}
        if not suspects:
            return [0] * len(records)
        unsuspected = Suspects()
        return [
            suspects.get(_Place(consumer, record.topic, record.partition), unsuspected).earlier(record.offset)
            for record in records
        ]

    async def _note(self, offsets: Mapping[_Place, Sequence[int]]) -> list[_Place]:
        """Writes that these are in hand too. Returns the partitions that have another owner by now."""
        known = {place: self._places[place] for place in offsets}
        return await self._write({place: (begun, begun.with_more(offsets[place])) for place, begun in known.items()})

    async def _write(self, notes: Mapping[_Place, tuple[Begun, Stretch | None]]) -> list[_Place]:
        rows = []
        for place in sorted(notes):
            begun, in_hand = notes[place]
            together = begun.suspects.together
            settled = ",".join(map(str, sorted(begun.settled)))
            # Whatever becomes of the statement.
            begun.noted = begun.noted or in_hand is not None
            rows.append((*place, *(in_hand or (None, None)), *(together or (None, None)), settled))
        columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
        async with self._borrowing.connection() as connection:
            found = await connection.fetch(NOTE, *columns, self._owner, timeout=_STATEMENT)
        ours = {_Place(*row) for row in found}
        for place in ours:
            begun, in_hand = notes[place]
            begun.settled.clear()
            begun.noted = in_hand is not None
        return [place for place in notes if place not in ours]

    async def _take_over(self, places: Collection[_Place]) -> None:
        """Becomes the owner. What the one before had in hand is suspect from now on; what we have stays noted."""
        async with self._borrowing.connection() as connection, connection.transaction():
            await connection.execute(APPEAR, *_columns(places), self._owner, timeout=_STATEMENT)
            for row in await connection.fetch(LOOK, *_columns(places), timeout=_STATEMENT):
                place, owner, in_hand, suspects = _read(row)
                if owner != self._owner:
                    suspects.died(owner, in_hand)
                suspects.lives(self._owner)
                begun = self._places.setdefault(place, Begun())
                for offset in begun.settled:
                    suspects.deaths.pop(offset, None)
                begun.settled.clear()
                begun.suspects = suspects
                await self._take(connection, place, self._owner, begun.with_more(()), suspects)

    async def _withdraw(self, places: Collection[_Place]) -> None:
        """Others have these partitions, and took us for dead: a rebalance was quicker than we."""
        for place in places:
            self._places.pop(place, None)
        async with self._borrowing.connection() as connection, connection.transaction():
            for row in await connection.fetch(LOOK, *_columns(places), timeout=_STATEMENT):
                place, owner, in_hand, suspects = _read(row)
                suspects.lives(self._owner)
                await self._take(connection, place, owner, in_hand, suspects)

    async def _take(
        self, connection: AnyConnection, place: _Place, owner: str, in_hand: Stretch | None, suspects: Suspects
    ) -> None:
        await connection.execute(
            TAKE,
            *place,
            owner,
            *(in_hand or (None, None)),
            *(suspects.together or (None, None)),
            json.dumps({str(offset): owners for offset, owners in suspects.deaths.items()}),
            timeout=_STATEMENT,
        )

    async def _look(self, places: Collection[_Place]) -> None:
        async with self._borrowing.connection() as connection, connection.transaction():
            await connection.fetch(LOOK, *_columns(places), timeout=_STATEMENT)


def _by_place(consumer: str, records: Sequence[Record]) -> dict[_Place, list[int]]:
    if len(records) == 1:
        return {_Place(consumer, records[0].topic, records[0].partition): [records[0].offset]}
    found: dict[tuple[str, int], list[int]] = {}
    for record in records:
        source = (record.topic, record.partition)
        if source in found:
            found[source].append(record.offset)
        else:
            found[source] = [record.offset]
    return {_Place(consumer, topic, number): offsets for (topic, number), offsets in found.items()}


def _columns(places: Iterable[_Place]) -> list[list[Any]]:
    ordered = sorted(places)
    return [
        [place.consumer for place in ordered],
        [place.topic for place in ordered],
        [place.partition for place in ordered],
    ]


def _read(row: Any) -> tuple[_Place, str, Stretch | None, Suspects]:
    place = _Place(row["consumer"], row["topic"], row["partition"])
    in_hand = _stretch(row["first_offset"], row["last_offset"])
    together = _stretch(row["suspect_first"], row["suspect_last"])
    deaths = {int(offset): owners for offset, owners in json.loads(row["deaths"]).items()}
    return place, str(row["owner"]), in_hand, Suspects(together, deaths)


def _stretch(first: int | None, last: int | None) -> Stretch | None:
    return None if first is None or last is None else Stretch(first, last)
