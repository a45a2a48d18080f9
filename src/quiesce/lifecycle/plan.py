"""The deadlines of one shutdown, all computed at the instant it was requested."""

from dataclasses import dataclass, replace
from typing import Self

from quiesce.lifecycle.budget import Budget
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part

UNWIND = 1.0
"""Seconds for what is aborted to unwind (to roll back, to let go of a connection) before closing begins. Where the
drain has no slack they are the last of the bound itself: a tenth of the time there was, at most this much."""

LEAST_CLOSING = 0.1
"""Seconds for each closer, whatever the ones before it took; at the worst out of half of the time for the report."""


def unwind(seconds: float) -> float:
    """How much of these seconds is kept for unwinding."""
    return min(UNWIND, seconds / 10)


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
    abort: Deadline
    """When critical sections, and a start that does not end, are aborted: early enough to unwind."""
    drain: Deadline
    """The latest instant at which closing begins, whoever still runs."""
    producers: Deadline
    pools: Deadline
    end: Deadline
    """The hard deadline."""

    @classmethod
    def at(cls, budget: Budget, t0: float, within: float | None = None) -> Self:
        """The plan for a stop requested at `t0`; `within` tells how many seconds are left to SIGKILL, if known. The
        margin in front of it shrinks like everything else, and is kept."""
        scale = 1.0 if within is None else max(0.0, min(1.0, within / (budget.available + budget.margin)))
        end = t0 + budget.available * scale
        pools = end - budget.report * scale
        producers = pools - budget.pools * scale
        drain = producers - budget.producers * scale
        abort = drain - unwind(drain - t0)
        lame_duck = min(t0 + budget.lame_duck * scale, abort)
        return cls(
            budget=budget,
            t0=t0,
            scale=scale,
            lame_duck=Deadline(lame_duck),
            http=Deadline(min(lame_duck + budget.http * scale, abort)),
            abort=Deadline(abort),
            drain=Deadline(drain),
            producers=Deadline(producers),
            pools=Deadline(pools),
            end=Deadline(end),
        )

    @property
    def available(self) -> float:
        """Seconds from T0 to the hard deadline."""
        return self.end.at - self.t0

    def shortened(self, now: float, within: float) -> Self:
        """The plan once it is known, at `now`, that only `within` seconds are left; itself where that is no news."""
        other = self.at(self.budget, now, within)
        if other.end >= self.end:
            return self
        return replace(
            self,
            scale=other.scale,
            lame_duck=min(self.lame_duck, other.lame_duck),
            http=min(self.http, other.http),
            abort=min(self.abort, other.abort),
            drain=min(self.drain, other.drain),
            producers=min(self.producers, other.producers),
            pools=min(self.pools, other.pools),
            end=other.end,
        )

    def worker(self, bound: float, told_at: float, reserve: float = 0.0) -> Deadline:
        """When a worker told to stop at `told_at` must be done.

        `bound` is its share in seconds; `reserve` seconds are kept for what follows its abort, which is over when
        sections are aborted. Either way it has time to unwind before the drain ends.
        """
        latest = self.drain.at - unwind(self.drain.remaining(told_at))
        if reserve:
            latest = min(latest, self.abort.at) - reserve * self.scale
        return Deadline(min(told_at + bound * self.scale, max(min(told_at, self.drain.at), latest)))

    def waited_for(self, aborted_at: float, given_up: float | None) -> float:
        """Until when what was torn at `aborted_at`, and does not end, is waited for by those that protect its work.

        They go as late as they can, and not with the end of the drain itself: what they have in hand then has to
        end, or to unwind, before closing begins. `given_up`: when all that was in hand, sections included, was or
        will be torn by a second signal; then they wait no longer than that takes to unwind.
        """
        latest = max(self.abort.at, (aborted_at + self.drain.at) / 2)
        return latest if given_up is None else min(latest, max(aborted_at, given_up) + UNWIND)

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

        Those left share what remains, so a slow one cannot take the time of the ones after it. Where next to nothing
        remains, each still has `LEAST_CLOSING`, as long as half of the time for the report is left.
        """
        latest = Deadline(self.end.at - self.budget.report * self.scale / 2)
        least = min(LEAST_CLOSING, latest.remaining(now) / max(1, left))
        return Deadline(now + max(until.remaining(now) / max(1, left), least))
