"""How many events may be in flight now: what is sized from the broker's pace, kept up to date and told."""

import logging
from collections.abc import Iterable
from math import inf
from typing import Protocol

from quiesce.relay.progress import Progress
from quiesce.relay.settings import RelaySettings
from quiesce.relay.sizing import Sizing

log = logging.getLogger("quiesce.relay")

_CALM = 60.0
"""Seconds without little allowed, after which it is told that there is more again."""


class Waiting(Protocol):
    """A claim that was handed over: how many of its events have no answer, and since when."""

    @property
    def unanswered(self) -> int: ...

    @property
    def waiting_since(self) -> float | None: ...


class Allowance:
    """Of one run of a relay, of which a stop has `within` seconds for what is in flight."""

    def __init__(self, settings: RelaySettings, within: float, progress: Progress) -> None:
        self._settings = settings
        self._within = within
        self._progress = progress
        self._sizing = Sizing(settings.max_in_flight, within)
        self._answered_at = -inf
        self._low_at: float | None = None
        """When it was last less than half of what is set; None once it has been told that it is so no more."""

    def now(self, flights: Iterable[Waiting], at: float) -> int:
        """How many events may be in flight, so that a stop can finish them all. `flights` are all that are open."""
        since, unanswered = inf, 0
        for flight in flights:
            if flight.waiting_since is not None:
                since = min(since, flight.waiting_since)
                unanswered += flight.unanswered
        waited = 0.0 if since == inf else at - max(since, self._answered_at)
        allowed = self._sizing.allowed(unanswered, waited)
        self._progress.allowed, self._progress.pace = allowed, self._sizing.pace()
        return allowed

    def measured(self, events: int, began: float, answered_at: float, at: float) -> None:
        """A claim was handed over then and is answered. Until the one before it was, its time was that one's."""
        self._sizing.answered(at, events, answered_at - max(began, self._answered_at))
        self._answered_at = max(self._answered_at, answered_at)

    def refused(self, events: int) -> None:
        """All of a claim was refused: the broker has none of it."""
        self._sizing.refused(events)

    def tell(self, allowed: int, at: float) -> None:
        """Logs it where it has become less than half of what is set, or has not been so for a while: a pace that
        swings is told once."""
        was_low = self._low_at is not None
        if allowed < self._settings.max_in_flight // 2:
            self._low_at = at
            if was_low:
                return
        elif self._low_at is not None and at - self._low_at >= _CALM:
            self._low_at = None
        else:
            return
        log.info(
            "%s: at most %d events in flight: the broker answers %.3g a second, and a stop has %g s for them",
            self._settings.name,
            allowed,
            self._sizing.pace() or 0.0,
            self._within,
        )
