"""Offsets that may be committed: for each partition the first that is not done, and what is done behind it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quiesce.inbox.beyond import Beyond
from quiesce.inbox.delivered import Delivered
from quiesce.inbox.record import TopicPartition


@dataclass(frozen=True, slots=True)
class Place:
    """How far one partition is done."""

    offset: int
    handled: int
    """How many records were handled since the last commit that was confirmed."""
    beyond: Beyond


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets to commit under one assignment number."""

    number: int
    places: Mapping[Delivered, Place]

    def by_partition(self) -> dict[TopicPartition, int]:
        return {part.source: place.offset for part, place in self.places.items()}

    def beyond(self) -> dict[TopicPartition, Beyond]:
        """Of the partitions of which something is done behind the offset."""
        return {part.source: place.beyond for part, place in self.places.items() if place.beyond}


def to_commit(parts: Iterable[Delivered]) -> list[Offsets]:
    """Those of the partitions that have got further than what the broker has confirmed.

    Each goes under the newest number it was handed out under, which covers the older ones: it has been ours without
    a break, or its records would not be here.
    """
    places: dict[int, dict[Delivered, Place]] = {}
    for part in parts:
        offset = part.place()
        if part.handled or offset > part.committed:
            places.setdefault(part.newest, {})[part] = Place(offset, part.handled, part.beyond(offset))
    return [Offsets(number, of) for number, of in places.items()]
