"""Which dead letters of a partition have been dealt with. Pure.

A letter that was sent back, or dismissed, stays where it is: a topic is a log. What was dealt with is written behind
it, into the same partition: a **mark** names offsets of that partition. So it is kept for longer than what it is about,
by the same retention, and needs no other store.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from quiesce.inbox.record import Record

MARK = "quiesce-dealt-with"
"""The header of a mark: offsets of the partition that it stands in, such as `12-15,20`. It has no key and no value."""

BY = "quiesce-by"
"""The header of a mark that says who dealt with them."""

MOST = 100_000
"""Offsets that one mark may name; one that names more was not written by us."""


class Offsets:
    """A set of offsets, kept as stretches: most of them are neighbours."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._firsts, offset) - 1
        return at >= 0 and offset <= self._lasts[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._firsts, self._lasts, strict=True))

    def add(self, first: int, last: int) -> None:
        """Adds the offsets from the first to the last."""
        begin = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        if begin < end:
            first, last = min(first, self._firsts[begin]), max(last, self._lasts[end - 1])
        self._firsts[begin:end] = [first]
        self._lasts[begin:end] = [last]


def mark(offsets: Iterable[int]) -> bytes:
    """What a mark says of these offsets."""
    found = Offsets()
    for offset in offsets:
        found.add(offset, offset)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found).encode()


def is_mark(record: Record) -> bool:
    return record.header(MARK) is not None


def take_mark(record: Record, into: Offsets) -> None:
    """Adds what a mark names. What makes no sense, or names something behind the mark, is passed over."""
    for piece in (record.header(MARK) or "").split(","):
        first, _, last = piece.partition("-")
        numbers = first, last or first
        if all(number.isascii() and number.isdigit() and len(number) < 16 for number in numbers):
            begin, end = int(numbers[0]), int(numbers[1])
            if begin <= end < record.offset and end - begin < MOST:
                into.add(begin, end)
