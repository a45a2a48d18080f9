"""Absolute instants on a monotonic clock."""

from dataclasses import dataclass
from math import inf
from typing import Self


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """An absolute instant, in seconds of the service's monotonic clock.

    It is computed once and handed down, so that waits made one after the other cannot add up to more
    than was allowed, as relative timeouts do.
    """

    at: float

    @classmethod
    def never(cls) -> Self:
        """The deadline that does not come: before a stop was requested there is no limit."""
        return cls(inf)

    def remaining(self, now: float) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at - now)

    def passed(self, now: float) -> bool:
        return now >= self.at

    def before(self, seconds: float) -> Self:
        """A deadline this many seconds earlier: what comes after it keeps its share."""
        return type(self)(self.at - seconds)
