"""When to stop waiting for the broker, and how the time that is left is divided. Pure."""

from dataclasses import dataclass
from typing import Self


def reserve(allowed: float) -> float:
    """The last seconds of a drain of `allowed` seconds, kept for giving up in order.

    15 %, but between 0.2 and 2 s, and never more than half of what there is.
    """
    return min(max(0.2, min(2.0, 0.15 * allowed)), allowed / 2)


def stalled_at(oldest_handed_over: float | None, last_answer: float | None, publish_bound: float) -> float | None:
    """The instant at which a broker that stays silent counts as away; None while nothing waits for it.

    Silence is counted from the last answer, so a broker that is slow and not away keeps its work. But no
    claim waits longer than twice the bound, whoever else is answered meanwhile: one partition without a
    leader must not hold a transaction open for ever.
    """
    if oldest_handed_over is None:
        return None
    since = oldest_handed_over if last_answer is None else max(oldest_handed_over, last_answer)
    return min(since, oldest_handed_over + publish_bound) + publish_bound


@dataclass(frozen=True, slots=True)
class GivingUp:
    """How long each step of giving up may take, in seconds: the producer is discarded, what was acked
    until then is settled and the rest freed, and what hangs even then is torn and freed."""

    discard: float
    settle: float
    free: float

    @classmethod
    def within(cls, seconds: float, store_bound: float) -> Self:
        """The steps together take at most 95 % of `seconds`."""
        return cls(
            discard=min(5.0, 0.4 * seconds), settle=min(store_bound, 0.4 * seconds), free=min(1.0, 0.15 * seconds)
        )
