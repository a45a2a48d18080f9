"""Tells when a broker or a database goes away and comes back."""

import logging

from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.ports import Stop
from quiesce.outbox.events import OutageBegan, OutageEnded
from quiesce.relay.progress import Progress

log = logging.getLogger("quiesce.relay")

BACKOFF = Backoff(first=0.1, ceiling=2.0)
"""Between two looks at what is away: short, since whoever waits for it is a whole queue."""


class Outage:
    """One thing that can be away. It is told once, however often it fails in a row."""

    def __init__(self, relay: str, what: str, stop: Stop, progress: Progress) -> None:
        self._relay = relay
        self._what = what
        self._stop = stop
        self._progress = progress
        self._since: float | None = None
        self._failures = 0

    def failed(self, now: float, why: str) -> float:
        """It did not answer. Returns how many seconds to wait before the next look."""
        self._failures += 1
        if self._since is None:
            self._since = now
            self._progress.outage = self._what
            self._progress.outage_since = now
            log.warning("%s: the %s is away, nothing is claimed until it answers: %s", self._relay, self._what, why)
            self._stop.tell(OutageBegan(self._relay, self._what))
        return BACKOFF.wait(self._failures)

    def stumbled(self) -> float:
        """It answered, and had to be begun anew. Returns how many seconds to wait before that."""
        self._failures += 1
        return BACKOFF.wait(self._failures)

    def works(self) -> None:
        """It has done what it is there for, so the next failure is a first one. To answer is less than that: a
        broker that answers and breaks every producer must not be tried ten times a second."""
        self._failures = 0

    def answered(self, now: float) -> None:
        """It answered: the outage is over."""
        if self._since is not None:
            seconds, self._since = now - self._since, None
            if self._progress.outage == self._what:
                self._progress.outage = self._progress.outage_since = None
            log.info("%s: the %s answers again after %.1f s", self._relay, self._what, seconds)
            self._stop.tell(OutageEnded(self._relay, self._what, seconds))
