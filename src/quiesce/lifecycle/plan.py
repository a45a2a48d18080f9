"""The deadlines of one shutdown, all computed at the instant it was requested."""

from dataclasses import dataclass
from typing import Self

from quiesce.lifecycle.budget import Budget
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part


@dataclass(frozen=True, slots=True)
class Plan:
    """Absolute deadlines from T0 on. Closing is reserved backwards from the end.

    A part that ends early gives its time to nobody: the next one begins early and keeps its own bound.
    """

    budget: Budget
    t0: float
    scale: float
    """Below 1 where less time is left than the budget allows: every part shrinks in proportion."""
    lame_duck: Deadline
    http: Deadline
    drain: Deadline
    """The latest instant at which closing begins, whoever still runs."""
    producers: Deadline
    pools: Deadline
    end: Deadline
    """The hard deadline."""

    @classmethod
    def at(cls, budget: Budget, t0: float, within: float | None = None) -> Self:
        """The plan for a stop requested at `t0`; `within` tells how many seconds are left, if known."""
        scale = 1.0 if within is None else max(0.0, min(1.0, within / budget.available))
        end = t0 + budget.available * scale
        pools = end - budget.report * scale
        producers = pools - budget.pools * scale
        drain = producers - budget.producers * scale
        lame_duck = min(t0 + budget.lame_duck * scale, drain)
        return cls(
            budget=budget,
            t0=t0,
            scale=scale,
            lame_duck=Deadline(lame_duck),
            http=Deadline(min(lame_duck + budget.http * scale, drain)),
            drain=Deadline(drain),
            producers=Deadline(producers),
            pools=Deadline(pools),
            end=Deadline(end),
        )

    def worker(self, bound: float, told_at: float, reserve: float = 0.0) -> Deadline:
        """When a worker told to stop at `told_at` must be done.

        `bound` is its share in seconds; `reserve` seconds of the drain are kept for what follows its abort.
        """
        latest = max(min(told_at, self.drain.at), self.drain.at - reserve * self.scale)
        return Deadline(min(told_at + bound * self.scale, latest))

    def part(self, part: Part) -> Deadline:
        """When this part must be over at the latest."""
        match part:
            case Part.LAME_DUCK:
                return self.lame_duck
            case Part.HTTP:
                return self.http
            case Part.WORKERS:
                return self.drain
            case Part.PRODUCERS:
                return self.producers
            case Part.POOLS:
                return self.pools
            case Part.REPORT:
                return self.end

    def part_from(self, part: Part, began: float) -> Deadline:
        """When a part that begins now must be over: its own share, and never more than what is reserved."""
        match part:
            case Part.PRODUCERS:
                share = self.budget.producers
            case Part.POOLS:
                share = self.budget.pools
            case Part.REPORT:
                share = self.budget.report
            case _:
                return self.part(part)
        return Deadline(min(began + share * self.scale, self.part(part).at))

    def closer(self, until: Deadline, now: float, left: int) -> Deadline:
        """When the next of `left` resources of a part that is over at `until` must be closed.

        Those left share what remains, so a slow one cannot take the time of the ones after it.
        """
        return Deadline(now + until.remaining(now) / max(1, left))
