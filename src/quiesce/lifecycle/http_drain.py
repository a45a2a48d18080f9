"""The drain of HTTP: the lame-duck window, the requests in flight, and their abort."""

from collections.abc import Iterator

from quiesce.lifecycle import commands as do
from quiesce.lifecycle.parts import Parts
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.plan import Plan
from quiesce.lifecycle.watches import Watches, What


class HttpDrain:
    """Over from the first, unless something is served. `over` and `aborted` are told to workers that come after it."""

    def __init__(self, parts: Parts, watches: Watches) -> None:
        self.over = True
        self.aborted_at: float | None = None
        self._draining = False
        self._parts = parts
        self._watches = watches

    def serving(self) -> None:
        """There is something to drain."""
        self.over = False

    def ended(self) -> None:
        self.over = True

    @property
    def aborted(self) -> bool:
        return self.aborted_at is not None

    @property
    def runs(self) -> bool:
        """Whether it is still within its bound."""
        return not self.over and not self.aborted

    def next_at(self, plan: Plan) -> float | None:
        """The next instant at which time alone changes something."""
        if not self.runs:
            return None
        return plan.http.at if self._draining else plan.lame_duck.at

    def shorten(self, plan: Plan) -> Iterator[do.Decision]:
        """Less time is left than was planned."""
        if self._draining and self.runs:
            yield do.ShortenHttp(plan.http)

    def begin(self, now: float, plan: Plan) -> Iterator[do.Decision]:
        if not self.over and not plan.lame_duck.passed(now):
            yield self._parts.begin(Part.LAME_DUCK, now, plan.lame_duck)

    def decide(self, now: float, plan: Plan, *, aborting: bool) -> Iterator[do.Decision]:
        """`aborting`: no bound is waited for."""
        if not self.over and not self._draining and (aborting or plan.lame_duck.passed(now)):
            self._draining = True
            if self._parts.under_way(Part.LAME_DUCK):
                yield self._parts.end(Part.LAME_DUCK, now)
            yield self._parts.begin(Part.HTTP, now, plan.http)
            self._watches.begin(What.HTTP, "", now, plan.http.at)
            yield do.BeginHttpDrain(plan.http)
        if self._draining and self.runs and (aborting or plan.http.passed(now)):
            self.aborted_at = now
            yield do.AbortHttp()
        if self.over or self.aborted:
            if self._parts.under_way(Part.LAME_DUCK):
                yield self._parts.end(Part.LAME_DUCK, now)
            if self.over and self._parts.under_way(Part.HTTP):
                yield self._parts.end(Part.HTTP, now)
