"""What keeps a consumer from getting on: since when, why, and said once."""

import asyncio
import logging

from quiesce.lifecycle.backoff import Backoff

log = logging.getLogger("quiesce.workers")


class Standstill:
    """One thing that has to work: fetching, committing, the servers that the handlers need."""

    def __init__(self, consumer: str, what: str, backoff: Backoff | None = None) -> None:
        self.what = what
        self.since: float | None = None
        self.why = ""
        self._consumer = consumer
        self._backoff = backoff or Backoff(first=0.1, ceiling=5.0)
        self._failures = 0
        self._now = asyncio.get_running_loop().time

    def failed(self, error: BaseException) -> float:
        """It did not work. Returns how long to wait, in seconds."""
        self._failures += 1
        self.why = str(error) or type(error).__name__
        if self.since is None:
            self.since = self._now()
            # Once an outage: a line per try would bury everything else.
            log.warning("%s: cannot %s, trying again until it works: %s", self._consumer, self.what, self.why)
        return self._backoff.wait(self._failures)

    def works(self) -> None:
        if self.since is not None:
            log.info("%s: can %s again", self._consumer, self.what)
            self.since, self._failures = None, 0

    def told(self, now: float, at_least: float) -> str | None:
        """What to say once it has lasted so long; None before."""
        if self.since is None or now - self.since < at_least:
            return None
        return f"cannot {self.what} for {now - self.since:.0f} s: {self.why}"
