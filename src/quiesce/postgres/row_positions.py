"""Positions of events as the text in which the row store's statements take them."""

from collections.abc import Iterable, Sequence


def array(numbers: Iterable[int]) -> str:
    """A bigint[] as text, which is how the statements take it: for an array asyncpg has to ask the server for its type,
    once a connection, in a query that takes longer than a claim."""
    return f"{{{','.join(map(str, numbers))}}}"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as the ranges of an int8multirange, without its braces. A backlog is few ranges."""
    if not numbers:
        return ""
    first, last = numbers[0], numbers[-1]
    if last - first == len(numbers) - 1:
        return f"[{first},{last}]"
    found: list[str] = []
    begin = end = first
    for number in numbers:
        if number > end + 1:
            found.append(f"[{begin},{end}]")
            begin = number
        end = number
    found.append(f"[{begin},{end}]")
    return ",".join(found)


def multirange(parts: Iterable[str]) -> str:
    """The parts, as `ranges` makes them, in one int8multirange as text."""
    return f"{{{','.join(part for part in parts if part)}}}"
