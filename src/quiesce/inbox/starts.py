"""Which records were begun and never ended: one of them may have killed its process. Nothing here waits.

Kept for each partition and not for each record, so that a batch costs one small write. What that loses is regained
after a death: those that were in hand together are then begun one by one, and only who dies alone counts further.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Stretch(NamedTuple):
    """Offsets from the first to the last."""

    first: int
    last: int

    @classmethod
    def around(cls, offsets: Collection[int]) -> "Stretch | None":
        return cls(min(offsets), max(offsets)) if offsets else None


@dataclass(slots=True)
class Suspects:
    """What of one partition was begun by a process that is gone, and never ended."""

    together: Stretch | None = None
    """Was in hand with others: nobody knows which of them was to blame."""
    deaths: dict[int, list[str]] = field(default_factory=dict)
    """Was in hand alone: offset -> the owners that ended with it."""

    def __bool__(self) -> bool:
        return self.together is not None or bool(self.deaths)

    def earlier(self, offset: int) -> int:
        """How often the record was begun and never ended."""
        among = self.together is not None and self.together.first <= offset <= self.together.last
        return among + len(self.deaths.get(offset, ()))

    def died(self, owner: str, in_hand: Stretch | None) -> None:
        """The owner is gone, and had this in hand."""
        if in_hand is None:
            return
        if in_hand.first == in_hand.last:
            self.deaths.setdefault(in_hand.first, []).append(owner)
        elif self.together is None:
            self.together = in_hand
        else:
            self.together = Stretch(min(self.together.first, in_hand.first), max(self.together.last, in_hand.last))

    def lives(self, owner: str) -> None:
        """An owner that was taken for dead has spoken: a rebalance took the partition away from it."""
        for offset in [offset for offset, owners in self.deaths.items() if owner in owners]:
            self.deaths[offset] = [one for one in self.deaths[offset] if one != owner]
            if not self.deaths[offset]:
                del self.deaths[offset]

    def ended(self, offset: int) -> None:
        """It did not kill its process, and neither did those before it: they are begun in order."""
        self.deaths.pop(offset, None)
        if self.together is not None and offset >= self.together.first:
            self.together = Stretch(offset + 1, self.together.last) if offset < self.together.last else None


@dataclass(slots=True)
class Begun:
    """What this process has in hand of one partition, and what others left of it."""

    suspects: Suspects = field(default_factory=Suspects)
    in_hand: set[int] = field(default_factory=set)
    noted: bool = False
    """What is kept may say that something is in hand."""
    settled: set[int] = field(default_factory=set)
    """Suspects that ended: their deaths are still to be struck out where they are kept."""

    def with_more(self, offsets: Iterable[int]) -> Stretch | None:
        return Stretch.around(self.in_hand.union(offsets))

    def begin(self, offsets: Collection[int]) -> None:
        self.in_hand.update(offsets)

    def end(self, offsets: Collection[int]) -> bool:
        """Whether anything of the partition was in hand, and now nothing is."""
        before = bool(self.in_hand)
        self.in_hand.difference_update(offsets)
        if self.suspects:
            for offset in sorted(offsets):
                if self.suspects.earlier(offset):
                    self.settled.add(offset)
                    self.suspects.ended(offset)
        return before and not self.in_hand
