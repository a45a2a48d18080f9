"""What keeps a consumer from getting on: since when, why, and said once."""

import asyncio
import logging
from collections.abc import Collection, Hashable
from math import inf

from quiesce.inbox.record import TopicPartition
from quiesce.inbox.window import Window
from quiesce.lifecycle.backoff import Backoff

REMIND = 300.0
"""Seconds after which it is told again that a partition stands. An outage ends by itself; this may not."""

STANDS_AFTER = 30.0
"""Seconds after which a full partition that does not get on counts as one that stands."""

log = logging.getLogger("quiesce.workers")


class Standstill:
    """One thing that has to work: fetching, committing, the servers that the handlers need."""

    def __init__(self, consumer: str, what: str, backoff: Backoff | None = None, *, remind: float = inf) -> None:
        self.what = what
        self.since: float | None = None
        self.why = ""
        self.worked = 0
        """How often it has worked: whoever remembers the number knows whether it has since."""
        self._consumer = consumer
        self._backoff = backoff or Backoff(first=0.1, ceiling=5.0)
        self._failures = 0
        self._remind = remind
        self._remind_at = 0.0
        self._failed_at: list[Hashable] = []
        self._now = asyncio.get_running_loop().time

    def failed(self, error: BaseException | str, at: Hashable = None) -> float:
        """It did not work. Returns how long to wait, in seconds. `at`: where, for `elsewhere`."""
        self._failures += 1
        self.doubted(at)
        self.why = str(error) or type(error).__name__
        now = self._now()
        if self.since is None:
            self.since, self._remind_at = now, now + self._remind
            # Once an outage: a line per try would bury everything else.
            log.warning("%s: cannot %s, trying again until it works: %s", self._consumer, self.what, self.why)
        elif now >= self._remind_at:
            self._remind_at = now + self._remind
            log.warning("%s: %s", self._consumer, self.told(now, 0.0))
        return self._backoff.wait(self._failures)

    def works(self) -> None:
        self.worked += 1
        if self.since is not None:
            log.info("%s: can %s again", self._consumer, self.what)
            self.since, self._failures = None, 0
        self._failed_at.clear()

    def doubted(self, at: Hashable) -> None:
        """It failed there, which may be that place's own fault. Two places are enough to know that it is not."""
        if len(self._failed_at) < 2 and at not in self._failed_at:
            self._failed_at.append(at)

    def elsewhere(self, at: Hashable) -> bool:
        """Whether it failed somewhere else, too, and has not worked since."""
        return any(one != at for one in self._failed_at)

    def told(self, now: float, at_least: float) -> str | None:
        """What to say once it has lasted so long; None before."""
        if self.since is None or now - self.since < at_least:
            return None
        return f"cannot {self.what} for {now - self.since:.0f} s: {self.why}"


class StandingPartitions:
    """Partitions that are full and do not get on, since a record in front has failed, or is held, and its key waits."""

    def __init__(self, consumer: str, window: Window) -> None:
        self.standstill = Standstill(consumer, "get on in every partition", remind=REMIND)
        self._window = window
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        self._now = asyncio.get_running_loop().time

    def look(self, full: Collection[TopicPartition]) -> None:
        now = self._now()
        before, self._since = self._since, {}
        standing: list[str] = []
        for source in sorted(full, key=str):
            part = self._window.parts.get(source)
            # One that has met no trouble is in hand for the first time, however long that takes.
            if part is None or (place := part.place()) not in part.troubles:
                continue
            at, since = before.get(source, (-1, now))
            self._since[source] = (place, since if at == place else now)
            if at == place and now - since >= STANDS_AFTER:
                name = f"{source.topic}[{source.partition}]"
                standing.append(f"{name} stands behind {name}@{place}, whose key waits ({part.left} records are left)")
        if standing:
            self.standstill.failed("; ".join(standing))
        else:
            self.standstill.works()
