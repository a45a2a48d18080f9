"""What of a partition is done behind a record that is not.

One slow record holds the partition's offset back, while those behind it, of other keys, are done. It is kept beside
the offset, so that nobody who gets the partition next does them once more. Nothing here waits.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

Run = tuple[int, int]
"""Offsets from the first number to the one in front of the second."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """Offsets at or behind `base` that are done, as runs in order with something undone between each two.

    An offset that no record stands at may count as done: what it costs depends on the records that are not done, and
    not on the gaps that compaction leaves.
    """

    base: int
    runs: tuple[Run, ...] = ()
    held: int | None = None
    """`Record.checksum` of the record at `base`, where that is known."""

    @classmethod
    def all_but(cls, base: int, end: int, undone: Iterable[int]) -> "Beyond":
        """From `base` to the one in front of `end`, without these. Those outside do not count."""
        runs: list[Run] = []
        begin = base
        for offset in sorted(undone):
            if begin <= offset < end:
                if begin < offset:
                    runs.append((begin, offset))
                begin = offset + 1
        if begin < end:
            runs.append((begin, end))
        return cls(base, tuple(runs))

    @property
    def end(self) -> int:
        """Behind the last one that is done."""
        return self.runs[-1][1] if self.runs else self.base

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __len__(self) -> int:
        """How many offsets are done."""
        return sum(end - begin for begin, end in self.runs)

    def __contains__(self, offset: int) -> bool:
        place = bisect_right(self.runs, (offset, inf)) - 1
        return place >= 0 and offset < self.runs[place][1]

    def seen_from(self, base: int) -> "Beyond":
        """The same for another base. What lies in front of it is left out."""
        held = self.held if base == self.base else None
        if not self.runs or base <= self.runs[0][0]:
            return Beyond(base, self.runs, held)
        return Beyond(base, tuple((max(base, begin), end) for begin, end in self.runs if end > base), held)

    def before(self, offset: int) -> "Beyond":
        """What of it lies in front of this offset."""
        return replace(self, runs=tuple((begin, min(end, offset)) for begin, end in self.runs if begin < offset))

    def __or__(self, other: "Beyond") -> "Beyond":
        """What is done by either, with the base of this one."""
        runs: list[Run] = []
        for begin, end in sorted(chain(self.runs, other.seen_from(self.base).runs)):
            if runs and begin <= runs[-1][1]:
                runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
            else:
                runs.append((begin, end))
        held = other.held if self.held is None and other.base == self.base else self.held
        return Beyond(self.base, tuple(runs), held)

    def settled(self) -> "Beyond":
        """Its base is the first offset that is not done."""
        if self.runs and self.runs[0][0] == self.base:
            return Beyond(self.runs[0][1], self.runs[1:])
        return self

    def lower_half(self) -> "Beyond":
        """Less of it, where there is no room for more."""
        return replace(self, runs=self.runs[: len(self.runs) // 2])
