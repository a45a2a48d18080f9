"""The table `record_start`: who has what in hand of a partition, and what others left of it."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from quiesce.inbox.starts import Begun, Stretch, Suspects
from quiesce.postgres.borrowing import Borrowing
from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.start_statements import APPEAR, LOOK, NOTE, TAKE

STATEMENT = 5.0
"""Seconds for a note, or for one transaction."""


class Place(NamedTuple):
    """What has a row."""

    consumer: str
    topic: str
    partition: int


Notes = Mapping[Place, tuple[Begun, Stretch | None]]
"""What we have of a partition, and what of that is in hand."""


class StartTable:
    """Its rows, as one owner reads and writes them. Each method raises what `Borrowing.connection` raises."""

    def __init__(self, borrowing: Borrowing, owner: str) -> None:
        self._borrowing = borrowing
        self._owner = owner

    async def look(self, within: float = STATEMENT) -> None:
        """Whether it is there, and answers in so many seconds."""
        async with self._borrowing.transaction(within) as connection:
            await connection.fetch(LOOK, *_columns(()))

    async def write(self, notes: Notes, within: float = STATEMENT) -> list[Place]:
        """Writes them where we are still the owner. Returns the partitions that have another one by now."""
        rows = []
        for place in sorted(notes):
            begun, in_hand = notes[place]
            together = begun.suspects.together
            settled = ",".join(map(str, sorted(begun.settled)))
            # Whatever becomes of the statement.
            begun.noted = begun.noted or in_hand is not None
            rows.append((*place, *(in_hand or (None, None)), *(together or (None, None)), settled))
        columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
        async with self._borrowing.connection(within) as connection:
            found = await connection.fetch(NOTE, *columns, self._owner)
        ours = {Place(*row) for row in found}
        for place in ours:
            begun, in_hand = notes[place]
            begun.settled.clear()
            begun.noted = in_hand is not None
        return [place for place in notes if place not in ours]

    async def take_over(self, places: Collection[Place], known: dict[Place, Begun]) -> None:
        """Becomes the owner. What the one before had in hand is suspect from now on; what we have stays noted."""
        async with self._borrowing.transaction(STATEMENT) as connection:
            await connection.execute(APPEAR, *_columns(places), self._owner)
            for row in await connection.fetch(LOOK, *_columns(places)):
                place, owner, in_hand, suspects = _read(row)
                if owner != self._owner:
                    suspects.died(owner, in_hand)
                suspects.lives(self._owner)
                begun = known.setdefault(place, Begun())
                for offset in begun.settled:
                    suspects.deaths.pop(offset, None)
                begun.settled.clear()
                begun.suspects = suspects
                await _take(connection, place, self._owner, begun.with_more(()), suspects)

    async def withdraw(self, places: Collection[Place], within: float = STATEMENT) -> None:
        """Others have these partitions, and took us for dead: a rebalance was quicker than we."""
        async with self._borrowing.transaction(within) as connection:
            for row in await connection.fetch(LOOK, *_columns(places)):
                place, owner, in_hand, suspects = _read(row)
                suspects.lives(self._owner)
                await _take(connection, place, owner, in_hand, suspects)


async def _take(
    connection: AnyConnection, place: Place, owner: str, in_hand: Stretch | None, suspects: Suspects
) -> None:
    deaths = json.dumps({str(offset): owners for offset, owners in suspects.deaths.items()})
    together = suspects.together or (None, None)
    await connection.execute(TAKE, *place, owner, *(in_hand or (None, None)), *together, deaths)


def _columns(places: Iterable[Place]) -> list[list[Any]]:
    ordered = sorted(places)
    return [
        [place.consumer for place in ordered],
        [place.topic for place in ordered],
        [place.partition for place in ordered],
    ]


def _read(row: Any) -> tuple[Place, str, Stretch | None, Suspects]:
    place = Place(row["consumer"], row["topic"], row["partition"])
    in_hand = _stretch(row["first_offset"], row["last_offset"])
    together = _stretch(row["suspect_first"], row["suspect_last"])
    deaths = {int(offset): owners for offset, owners in json.loads(row["deaths"]).items()}
    return place, str(row["owner"]), in_hand, Suspects(together, deaths)


def _stretch(first: int | None, last: int | None) -> Stretch | None:
    return None if first is None or last is None else Stretch(first, last)
