"""What of a partition is done behind a record that is not.

One slow record holds the partition's offset back, while those behind it, of other keys, are done. It is kept beside
the offset, so that nobody who gets the partition next does them once more. Nothing here waits.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Beyond:
    """Offsets at or behind `base` that are done: `base + n` where bit n is set.

    An offset that no record stands at may count as done.
    """

    base: int
    bits: int = 0

    @classmethod
    def all_but(cls, base: int, end: int, undone: Iterable[int]) -> "Beyond":
        """From `base` to the one in front of `end`, without these. Those outside do not count."""
        length = end - base
        if length <= 0:
            return cls(base)
        holes = bytearray(length // 8 + 1)
        for offset in undone:
            place = offset - base
            if 0 <= place < length:
                holes[place >> 3] |= 1 << (place & 7)
        return cls(base, ((1 << length) - 1) & ~int.from_bytes(holes, "little"))

    @property
    def end(self) -> int:
        """Behind the last one that is done."""
        return self.base + self.bits.bit_length()

    def __bool__(self) -> bool:
        return self.bits != 0

    def __contains__(self, offset: int) -> bool:
        return offset >= self.base and self.bits >> (offset - self.base) & 1 == 1

    def seen_from(self, base: int) -> "Beyond":
        """The same for another base. What lies in front of it is left out."""
        shift = base - self.base
        return Beyond(base, self.bits >> shift if shift >= 0 else self.bits << -shift)

    def __or__(self, other: "Beyond") -> "Beyond":
        """What is done by either, with the base of this one."""
        return Beyond(self.base, self.bits | other.seen_from(self.base).bits)

    def settled(self) -> "Beyond":
        """Its base is the first offset that is not done."""
        done = (self.bits ^ (self.bits + 1)).bit_length() - 1
        return self.seen_from(self.base + done)

    def lower_half(self) -> "Beyond":
        """Less of it, where there is no room for more."""
        return Beyond(self.base, self.bits & ((1 << self.bits.bit_length() // 2) - 1))
