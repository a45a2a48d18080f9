"""A long load in windows: what came in each, and whether its end is like its beginning."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from quiesce.bench.relay_load import Timings
from quiesce.errors import StartError

_EDGE = 0.2
"""The part of the windows that is the beginning, and the part that is the end."""


@dataclass(frozen=True, slots=True)
class Window:
    """Of the load between two instants: events a second that came, and milliseconds from commit to consumer."""

    per_second: float
    p50: float
    p99: float


def windows(timings: Timings, began: float, length: float, number: int) -> list[Window]:
    """What came in each of `number` windows of `length` seconds, and how long what was committed in it took.

    Raises:
        StartError: a window is empty.
    """
    arrived = [0] * number
    for came in timings.came:
        if came and 0 <= (place := int((came - began) // length)) < number:
            arrived[place] += 1
    found = []
    for place in range(number):
        ways = timings.ways(began + place * length, began + (place + 1) * length)
        if len(ways) < 2:
            raise StartError(f"no events in window {place + 1} of {number}, so there is nothing to compare")
        cuts = statistics.quantiles(ways, n=100)
        found.append(Window(arrived[place] / length, cuts[49], cuts[98]))
    return found


def edge(number: int) -> int:
    """How many of so many windows are the beginning, and how many the end."""
    return max(1, round(number * _EDGE))


def beginning(values: Sequence[float]) -> float:
    """The median of the first fifth."""
    return statistics.median(values[: edge(len(values))])


def drift(values: Sequence[float]) -> float:
    """The end beside the beginning: medians of a fifth of the windows each."""
    # Where next to nothing came at the beginning, there is nothing to be measured by.
    return statistics.median(values[-edge(len(values)) :]) / max(beginning(values), 1e-3)
