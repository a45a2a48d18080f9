"""When something that repeats begins: a fixed grid, measured from start to start."""

from dataclasses import dataclass
from math import ceil

_ON_TIME = 1e-9
"""Of an interval. A grid point that rounding has put this little behind us is not a missed one."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The instants `origin + n * seconds`. Counted from the origin, so rounding does not add up.

    With `seconds` 0 every point is due at once.
    """

    origin: float
    seconds: float

    def instant(self, index: int) -> float:
        return self.origin + index * self.seconds

    def next_index(self, last: int, now: float) -> int:
        """The grid point after `last` that is due now or later. Those missed meanwhile are skipped, so a
        late iteration is followed by no burst."""
        if self.seconds <= 0:
            return last + 1
        return max(last + 1, ceil((now - self.origin) / self.seconds - _ON_TIME))
