"""How long to wait before the next try."""

from collections.abc import Callable
from dataclasses import dataclass
from random import random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential, with full jitter: a random wait between zero and a ceiling that doubles.

    Full jitter keeps the tries of many processes apart after an outage that hit them all at once.
    Durations are seconds. `draw` returns a number from [0, 1); tests inject their own.
    """

    first: float = 0.1
    ceiling: float = 30.0
    factor: float = 2.0
    draw: Callable[[], float] = random

    def limit(self, attempt: int) -> float:
        """The longest wait after this many failed tries (1 is the first)."""
        # The exponent is capped: a float overflows after a thousand tries, an outage may last longer.
        return min(self.ceiling, self.first * self.factor ** min(max(0, attempt - 1), 64))

    def wait(self, attempt: int) -> float:
        return self.limit(attempt) * self.draw()
