"""When to look at what has not ended yet: at half of its bound, and shortly before the end of it."""

import heapq
from collections.abc import Callable
from enum import StrEnum

SHARES = (0.5, 0.9)
"""Of a bound. At the end of it the abort says so by itself."""


class What(StrEnum):
    """The kinds of things that have a bound."""

    START = "start"
    """The start-up function, and whatever is being opened."""
    HTTP = "http"
    WORKER = "worker"
    SECTIONS = "sections"
    CLOSER = "closer"


class Watches:
    """The instants at which to look. They are seconds of the machine's clock.

    Args:
        runs: whether the thing still runs within its bound; what does not is not looked at.
    """

    def __init__(self, runs: Callable[[What, str], bool]) -> None:
        self._runs = runs
        self._looks: list[tuple[float, float, What, str]] = []

    def begin(self, what: What, name: str, began: float, until: float) -> None:
        """Its bound began; it is watched until it does not run any more."""
        for share in SHARES:
            heapq.heappush(self._looks, (began + share * (until - began), share, what, name))

    @property
    def next_at(self) -> float | None:
        """The next instant to look at something that runs."""
        # What ended is dropped here, so a thousand workers that end at once cost no search each.
        while self._looks and not self._runs(*self._looks[0][2:]):
            heapq.heappop(self._looks)
        return self._looks[0][0] if self._looks else None

    def due(self, now: float) -> list[tuple[What, str, float]]:
        """What to look at now, and how much of its bound is over. Several missed looks at a thing are one."""
        shares: dict[tuple[What, str], float] = {}
        while (at := self.next_at) is not None and at <= now:
            _, share, what, name = heapq.heappop(self._looks)
            shares[what, name] = max(share, shares.get((what, name), 0.0))
        return [(what, name, share) for (what, name), share in shares.items()]
