"""When each part of a shutdown begins and must be over, on paper: no clock, no service.

The instants are those of `Plan`, so the picture cannot say anything else than what a running service does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from quiesce.errors import BudgetError
from quiesce.lifecycle.budget import HAND_BACK_BOUND, Budget, WorkerBound
from quiesce.lifecycle.plan import Plan

WIDTH = 60
"""Characters of the picture, from the first second of the grace period to SIGKILL."""

OTHERS = "workers"
"""The row of every worker that has no bound of its own."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to say about a budget: refused, or only worth knowing."""

    message: str
    rule: str | None = None
    """The rule it goes by, such as R-SHUT-2."""
    refused: bool = True

    def __str__(self) -> str:
        return self.message if self.rule is None else f"{self.message} ({self.rule})"


@dataclass(frozen=True, slots=True)
class Stretch:
    """One part of the shutdown. Instants are seconds from T0, the request to stop; what is before it is negative."""

    name: str
    begins: float
    """The latest instant: a part begins early where the ones before it end early."""
    deadline: float
    """Where the drain has no slack it comes earlier than the bound's end: what is aborted has time to unwind."""
    bound: float
    spare: float = 0.0
    """Seconds by which its deadline could be later and closing would still have all of its time."""
    reserved: bool = False
    """Kept for it backwards from the end: nobody before it can use that time."""
    mark: str = "#"


@dataclass(frozen=True, slots=True)
class Timeline:
    """The whole of a grace period, part by part. It can also be made of what does not fit: see `findings`."""

    budget: Budget
    workers: tuple[WorkerBound, ...]
    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, budget: Budget, workers: Iterable[WorkerBound] = ()) -> Self:
        """`workers`: those whose bound is known; all others are taken to need the budget's `workers`."""
        others = WorkerBound(OTHERS)
        known = (others, *workers)
        plan = Plan.at(budget, 0.0)
        drain = plan.drain.at
        served = budget.lame_duck + budget.http
        found = [
            Stretch("prestop", -budget.prestop, 0.0, budget.prestop, mark="-"),
            Stretch("lame_duck", 0.0, budget.lame_duck, budget.lame_duck, drain - served),
            Stretch("http", budget.lame_duck, _in_time(served, plan.http.at, drain), budget.http, drain - served),
        ]
        for worker, end in budget.ends(known):
            name = worker.name if worker is others else f"worker {worker.name}"
            # With the second in which one that was torn hands back what it had in hand.
            reserve = HAND_BACK_BOUND if worker.hands_back else 0.0
            bound = budget.bound_of(worker) + reserve
            planned = plan.worker(bound - reserve, end - bound, reserve).at + reserve
            found.append(Stretch(name, end - bound, _in_time(end, planned, drain), bound, drain - end))
        found += [
            Stretch("producers", drain, plan.producers.at, budget.producers, reserved=True, mark="="),
            Stretch("pools", plan.producers.at, plan.pools.at, budget.pools, reserved=True, mark="="),
            Stretch("report", plan.pools.at, plan.end.at, budget.report, reserved=True, mark="="),
            Stretch("margin", plan.end.at, plan.end.at + budget.margin, budget.margin, reserved=True, mark="-"),
        ]
        return cls(budget, known, tuple(stretch for stretch in found if stretch.bound > 0))

    @property
    def longest(self) -> float:
        """Seconds of the longest path, preStop and margin included."""
        return self.budget.longest(self.workers)

    @property
    def slack(self) -> float:
        """Seconds of the grace period that nothing needs; negative where it does not fit."""
        return self.budget.grace_period - self.longest

    @property
    def sum(self) -> str:
        return self.budget.sum_of(self.workers)

    @property
    def after_sigterm(self) -> float:
        """Seconds the service needs between SIGTERM and SIGKILL: its hard deadline, and the margin."""
        return self.budget.available + self.budget.margin

    def findings(self) -> list[Finding]:
        """Refused where the parts do not fit into the budget's own grace period."""
        try:
            self.budget.require(self.workers)
        except BudgetError as error:
            return [Finding(str(error), "R-SHUT-2")]
        return []

    def draw(self) -> list[str]:
        """The lines of a table with a picture beside it."""
        head = "seconds from T0"
        title = max(len(head), *(len(stretch.name) for stretch in self.stretches))
        scale = f"{_round(-self.budget.prestop):g}"
        end = f"{self.after_sigterm:g} SIGKILL"
        ruler = f"{scale:<{WIDTH - len(end)}}{end}"
        lines = [f"{head:<{title}}  begins  deadline  bound  spare   {ruler}"]
        for stretch in self.stretches:
            spare = "-" if stretch.reserved or stretch.deadline <= 0 else f"{_round(stretch.spare):g}"
            lines.append(
                f"{stretch.name:<{title}}  {_round(stretch.begins):>6g}  {_round(stretch.deadline):>8g}  "
                f"{_round(stretch.bound):>5g}  {spare:>5}  |{self._bar(stretch)}|"
            )
        return lines

    def _bar(self, stretch: Stretch) -> str:
        first, last = self._cell(stretch.begins), self._cell(stretch.deadline)
        first = min(first, WIDTH - 1)
        last = max(last, first + 1)
        bar = " " * first + stretch.mark * (last - first)
        if stretch.spare > 0:
            bar += "." * (self._cell(stretch.deadline + stretch.spare) - last)
        # What overruns the grace period is cut here; the table has its figures.
        return f"{bar:<{WIDTH}}"[:WIDTH]

    def _cell(self, instant: float) -> int:
        return round((instant + self.budget.prestop) / self.budget.grace_period * WIDTH)

    def as_dict(self) -> dict[str, object]:
        return {
            "grace_period": self.budget.grace_period,
            "longest": _round(self.longest),
            "slack": _round(self.slack),
            "sum": self.sum,
            "hard_deadline": _round(self.budget.available),
            "parts": [
                {
                    "name": stretch.name,
                    "begins": _round(stretch.begins),
                    "deadline": _round(stretch.deadline),
                    "bound": _round(stretch.bound),
                    "spare": _round(stretch.spare),
                    "reserved": stretch.reserved,
                }
                for stretch in self.stretches
            ],
        }


def _in_time(end: float, planned: float, drain: float) -> float:
    """What does not fit is shown as it is, and not cut."""
    return end if end > drain else min(end, planned)


def _round(seconds: float) -> float:
    # Sums of fractions are not exact; and no minus in front of a zero.
    return round(seconds, 3) + 0.0
