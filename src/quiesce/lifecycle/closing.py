"""The closing of what was opened: producers before pools, and within a part in the reverse order of opening."""

from collections.abc import Generator, Mapping

from quiesce.lifecycle import commands as do
from quiesce.lifecycle.members import ResourceState
from quiesce.lifecycle.parts import Parts
from quiesce.lifecycle.phases import CLOSING_ORDER, Part
from quiesce.lifecycle.plan import Plan
from quiesce.lifecycle.watches import Watches, What


class Closing:
    """One closer after the other, each with its share of the time that was kept for its part."""

    def __init__(self, resources: Mapping[str, ResourceState], parts: Parts, watches: Watches) -> None:
        self._resources = resources
        self.order: list[ResourceState] = []
        """Those whose closing has begun."""
        self._current: ResourceState | None = None
        self._parts = parts
        self._watches = watches

    @property
    def next_at(self) -> float | None:
        """When the closer that runs has had its time."""
        current = self._current
        return None if current is None or current.deadline is None else current.deadline.at

    def runs(self, name: str) -> bool:
        """Whether this closer is still within its bound."""
        return self._current is not None and self._current.name == name and self._current.outcome is None

    def shorten(self, now: float, plan: Plan) -> None:
        """Less time is left than the closer that runs was told: it is given up earlier."""
        current = self._current
        if current is not None and current.outcome is None and current.deadline is not None:
            share = plan.closer(self._parts.states[current.part].until, now, len(self._left(current.part)) + 1)
            current.deadline = min(current.deadline, share)

    def decide(self, now: float, plan: Plan) -> Generator[do.Decision, None, bool]:
        """Returns whether all is closed, or was given up."""
        current = self._current
        if current is not None and current.outcome is None:
            if current.deadline is None or not current.deadline.passed(now):
                return False
            current.outcome, current.ended = "overran", now
            yield do.GiveUpCloser(current.name)
        self._current = None
        for part in CLOSING_ORDER:
            if not self._parts.began(part):
                yield self._parts.begin(part, now, plan.part_from(part, now))
            if left := self._left(part):
                # Reverse order of opening: what was opened later may use what was opened earlier.
                self._current = current = left[-1]
                current.began = now
                self.order.append(current)
                current.deadline = plan.closer(self._parts.states[part].until, now, len(left))
                self._watches.begin(What.CLOSER, current.name, now, current.deadline.at)
                yield do.CloseResource(current.name, part, current.deadline)
                # Not given up in the same breath, even where no time is left: each closer is called at least.
                return False
            if self._parts.under_way(part):
                yield self._parts.end(part, now)
        return True

    def _left(self, part: Part) -> list[ResourceState]:
        return [r for r in self._resources.values() if r.opened and r.part is part and r.began is None]
