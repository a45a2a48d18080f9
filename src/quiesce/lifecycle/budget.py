"""The time allotted to the whole shutdown, and whether its parts fit into it."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import isfinite
from typing import Literal

from quiesce.errors import BudgetError

KEEPER_BOUND = 1.0
"""Seconds a keeper without a bound of its own may take: it has little left to do once the work is over."""

HAND_BACK_BOUND = 1.0
"""Seconds in which an aborted worker must have handed back what it had in hand."""


LEAST_AVAILABLE = 0.5
"""Seconds from the request to stop to the hard deadline, at least: no interpreter ends in much less."""


@dataclass(frozen=True, slots=True)
class WorkerBound:
    """What a worker asks of the budget."""

    name: str
    bound: float | None = None
    """Seconds. None: the budget's `workers`; for a keeper `KEEPER_BOUND`, or `workers` where that is less."""
    after_http: bool = False
    keeps: tuple[str, ...] | Literal["all"] = ()
    """The workers that must be over before this one is told to stop; "all": all others, and HTTP."""
    hands_back: bool = False
    """It gets `HAND_BACK_BOUND` more when it is aborted."""

    def waits_for(self, other: "WorkerBound") -> bool:
        """Whether it is told only after that one is over. Of two that keep all, neither waits."""
        if self.keeps == "all":
            return other.name != self.name and other.keeps != "all" and self.name not in other.keeps
        return other.name in self.keeps

    @property
    def waits_for_http(self) -> bool:
        return self.after_http or self.keeps == "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Seconds for a whole shutdown, preStop included, and the share of each part.

    HTTP and workers drain side by side, so what counts is the longest path and not the sum
    (R-SHUT-OBS-1): prestop + max(lame_duck + http + workers that come after it, workers) + producers +
    pools + report + margin. A worker that keeps others comes after the longest of them. What does not fit
    raises `BudgetError`, which shows the sum.

    Raises:
        BudgetError: a value is negative or not a number, the parts exceed `grace_period`, or nothing is left for
            the report or between the request to stop and the hard deadline.
    """

    grace_period: float = 60.0
    """The orchestrator's number: terminationGracePeriodSeconds. SIGKILL comes this long after the pod is
    told to go."""
    prestop: float = 10.0
    """The preStop sleep. It is over when SIGTERM arrives, but was spent out of the same grace period."""
    lame_duck: float = 0.0
    """Still serving while routers forget us. Zero where a preStop sleep did that."""
    http: float = 25.0
    workers: float = 20.0
    producers: float = 15.0
    pools: float = 1.0
    report: float = 1.0
    margin: float = 1.0
    """Kept free in front of SIGKILL, for a machine that is late."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
                raise BudgetError(f"budget {field.name}: got {value!r}, takes seconds as a number")
            if value < 0:
                raise BudgetError(f"budget {field.name}: got {value:g}, takes seconds, 0 or more")
        if self.grace_period == 0:
            raise BudgetError("budget grace_period: got 0, takes the orchestrator's seconds, more than 0")
        self.require(())
        if self.available < LEAST_AVAILABLE:
            raise BudgetError(
                f"grace_period {self.grace_period:g} - prestop {self.prestop:g} - margin {self.margin:g} = "
                f"{self.available:g} s from the request to stop to the hard deadline, takes {LEAST_AVAILABLE:g} s or "
                "more"
            )
        if self.report == 0:
            raise BudgetError("budget report: got 0, takes more than 0 s: something must be left to tell what happened")

    @property
    def available(self) -> float:
        """Seconds from the first request to stop to the hard deadline."""
        return self.grace_period - self.prestop - self.margin

    @property
    def reserved(self) -> float:
        """Seconds kept for closing and reporting; a worker that overruns cannot use them."""
        return self.producers + self.pools + self.report

    def bound_of(self, worker: WorkerBound) -> float:
        """Seconds this worker may take once it is told to stop."""
        if worker.bound is not None:
            return worker.bound
        return min(KEEPER_BOUND, self.workers) if worker.keeps else self.workers

    def longest(self, workers: Iterable[WorkerBound] = ()) -> float:
        """Seconds of the longest path through the shutdown, preStop and margin included."""
        return self.prestop + self._drain(tuple(workers)) + self.reserved + self.margin

    def require(self, workers: Iterable[WorkerBound]) -> None:
        """Refuses what does not fit.

        Raises:
            BudgetError: with the whole sum, so that one sees which part to make smaller.
        """
        workers = tuple(workers)
        longest = self.longest(workers)
        # A thousandth of a second of tolerance: sums of fractions are not exact.
        if longest > self.grace_period + 0.001:
            raise BudgetError(
                f"{self.sum_of(workers)} = {longest:g} s, over grace_period {self.grace_period:g} s. "
                "Make the longest part smaller (smaller batches, shorter requests), not the budget bigger"
            )

    def sum_of(self, workers: Iterable[WorkerBound] = ()) -> str:
        """The sum behind `longest`, as people read it."""
        ends = self.ends(workers)
        served = self.lame_duck + self.http
        after = max((end - served for w, end in ends if w.waits_for_http and not w.keeps), default=0.0)
        beside = self._beside_http(ends, keepers=False)
        http = f"lame_duck {self.lame_duck:g} + http {self.http:g}" + (f" + after http {after:g}" if after else "")
        work = f"workers {beside:g}"
        # Where keepers make a side longer, they are shown on that side.
        if (kept := self._after_http(ends) - after) > 0:
            http += f" + keepers {kept:g}"
        if (kept := self._beside_http(ends) - beside) > 0:
            work += f" + keepers {kept:g}"
        return (
            f"prestop {self.prestop:g} + max({http}, {work}) + producers "
            f"{self.producers:g} + pools {self.pools:g} + report {self.report:g} + margin {self.margin:g}"
        )

    def ends(self, workers: Iterable[WorkerBound]) -> list[tuple[WorkerBound, float]]:
        """With each worker the seconds after T0 at which it is over at the latest, if it heeds its abort."""
        workers = tuple(workers)
        known: dict[str, float] = {}

        def end(worker: WorkerBound, on_the_way: frozenset[str]) -> float:
            if worker.name not in known:
                began = self.lame_duck + self.http if worker.waits_for_http else 0.0
                if worker.keeps:
                    way = on_the_way | {worker.name}
                    # A circle is refused elsewhere; here it only must not go round for ever.
                    kept = (other for other in workers if worker.waits_for(other) and other.name not in way)
                    began = max([began, *(end(other, way) for other in kept)])
                known[worker.name] = began + self.bound_of(worker) + (HAND_BACK_BOUND if worker.hands_back else 0.0)
            return known[worker.name]

        return [(worker, end(worker, frozenset())) for worker in workers]

    def _drain(self, workers: tuple[WorkerBound, ...]) -> float:
        ends = self.ends(workers)
        return max(self.lame_duck + self.http + self._after_http(ends), self._beside_http(ends))

    def _after_http(self, ends: list[tuple[WorkerBound, float]]) -> float:
        served = self.lame_duck + self.http
        return max((end - served for worker, end in ends if worker.waits_for_http), default=0.0)

    def _beside_http(self, ends: list[tuple[WorkerBound, float]], *, keepers: bool = True) -> float:
        # A service without workers still keeps its share: they may be registered later in the start.
        beside = [end for w, end in ends if not w.waits_for_http and (keepers or not w.keeps)]
        return max(beside, default=self.workers)
