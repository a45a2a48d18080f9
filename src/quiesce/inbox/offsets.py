"""Offsets that may be committed: for each partition the first that is not done."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quiesce.inbox.delivered import Delivered
from quiesce.inbox.record import TopicPartition


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets to commit under one assignment number."""

    number: int
    places: Mapping[Delivered, int]

    def by_partition(self) -> dict[TopicPartition, int]:
        return {part.source: place for part, place in self.places.items()}


def to_commit(parts: Iterable[Delivered]) -> list[Offsets]:
    """Those of the partitions that have got further than what the broker has confirmed.

    Each goes under the newest number it was handed out under, which covers the older ones: it has been ours without
    a break, or its records would not be here.
    """
    places: dict[int, dict[Delivered, int]] = {}
    for part in parts:
        place = part.place()
        if place > part.committed:
            places.setdefault(part.newest, {})[part] = place
    return [Offsets(number, of) for number, of in places.items()]
