"""When work in hand is given up, and when closing begins whoever still runs."""

from collections.abc import Iterator

from quiesce.lifecycle import commands as do
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import AbortRequested
from quiesce.lifecycle.plan import UNWIND, Plan
from quiesce.lifecycle.worker_drain import Abort, WorkerDrain


class Patience:
    """Nothing is aborted and left in the same instant, as long as time is left: what is torn rolls back first.

    `aborting`: when the work in hand was given up before its bounds were over, by a second signal.
    """

    def __init__(self, workers: WorkerDrain) -> None:
        self._workers = workers
        self.aborting: float | None = None
        self.cause = ""
        self.sections = 0
        """How many critical sections are open."""
        self.sections_aborted: float | None = None
        self._told = False
        self._interrupted_again = False
        self._looked_at = float("-inf")

    def abort(self, now: float, reason: str) -> None:
        if self.aborting is None:
            self.aborting, self.cause = now, reason

    def aborted(self, plan: Plan) -> Abort | None:
        """What the workers are told of the abort, if there is one."""
        if self.aborting is None:
            return None
        sections = self.sections_aborted
        if sections is None and self.sections:
            sections = self.sections_until(plan).at
        return Abort(self.aborting, self.cause, max(self.aborting, sections or self.aborting))

    def sections_until(self, plan: Plan) -> Deadline:
        """When critical sections that are still open are aborted: not before the worker that may be in them."""
        until = max(plan.abort, self._workers.last_deadline or plan.abort)
        return until if self.aborting is None else min(until, Deadline(self.aborting + UNWIND))

    def ends(self, plan: Plan) -> float:
        """When closing begins, whoever still runs. In an abort what was torn has a second to unwind. Sections, which
        are torn only at the end of that second, have another one; and so have keepers of what does not end."""
        if self.aborting is None:
            return plan.drain.at
        torn = max(self.aborting, self._workers.last_torn(self.aborting), self.sections_aborted or self.aborting)
        return min(torn + UNWIND, plan.drain.at)

    def instants(self, plan: Plan) -> Iterator[float]:
        """The instants at which time alone changes something."""
        yield self.ends(plan)
        # Sections begin without being told of, so their instant counts even where none is open now.
        yield from (at for at in (self.sections_until(plan).at, plan.abort.at) if at > self._looked_at)

    def decide(self, now: float, plan: Plan, *, starting: bool) -> Iterator[do.Decision]:
        """`starting`: the start-up function or an opening is not over."""
        self._looked_at = now
        if self.aborting is not None and not self._told:
            self._told = True
            yield AbortRequested(self.cause, self.aborting)
        if starting and not self._interrupted_again and (self.aborting is not None or plan.abort.passed(now)):
            self._interrupted_again = True
            yield do.InterruptStart()

    def tear_sections(self, now: float, plan: Plan, *, at_once: bool = False) -> Iterator[do.Decision]:
        """Once their time is over, or at once. After the workers, who then know why."""
        late = at_once or self.sections_until(plan).passed(now)
        if late and self.sections and self.sections_aborted is None:
            self.sections_aborted = now
            yield do.AbortSections()
