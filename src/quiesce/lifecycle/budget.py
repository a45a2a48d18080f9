"""The time allotted to the whole shutdown, and whether its parts fit into it."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import isfinite

from quiesce.errors import BudgetError


@dataclass(frozen=True, slots=True)
class WorkerBound:
    """What a worker asks of the budget: its own bound in seconds (None: the budget's `workers`)."""

    name: str
    bound: float | None = None
    after_http: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Seconds for a whole shutdown, preStop included, and the share of each part.

    HTTP and workers drain side by side, so what counts is the longest path and not the sum
    (R-SHUT-OBS-1): prestop + max(lame_duck + http + workers that come after it, workers) + producers +
    pools + report + margin. What does not fit raises `BudgetError`, which shows the sum.

    Raises:
        BudgetError: a value is negative or not a number, or the parts exceed `grace_period`.
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
        return self.workers if worker.bound is None else worker.bound

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
        workers = tuple(workers)
        after = self._after_http(workers)
        http = f"lame_duck {self.lame_duck:g} + http {self.http:g}" + (f" + after http {after:g}" if after else "")
        return (
            f"prestop {self.prestop:g} + max({http}, workers {self._beside_http(workers):g}) + producers "
            f"{self.producers:g} + pools {self.pools:g} + report {self.report:g} + margin {self.margin:g}"
        )

    def _drain(self, workers: tuple[WorkerBound, ...]) -> float:
        http = self.lame_duck + self.http + self._after_http(workers)
        return max(http, self._beside_http(workers))

    def _after_http(self, workers: tuple[WorkerBound, ...]) -> float:
        return max((self.bound_of(w) for w in workers if w.after_http), default=0.0)

    def _beside_http(self, workers: tuple[WorkerBound, ...]) -> float:
        # A service without workers still keeps its share: they may be registered later in the start.
        return max((self.bound_of(w) for w in workers if not w.after_http), default=self.workers)
