"""How a consumer commits: behind what is done, beside the handlers, bounded, again and again while brokers are away,
and never for a partition that is not ours any more."""

import asyncio
import logging
from collections.abc import Callable
from math import inf

from quiesce.errors import CommitRefused, Unavailable
from quiesce.inbox.events import BatchHandled
from quiesce.inbox.offsets import Offsets
from quiesce.inbox.window import Window
from quiesce.lifecycle.crash_points import reach
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Stop
from quiesce.workers import points
from quiesce.workers.standstill import Standstill
from quiesce.workers.terms import Terms

log = logging.getLogger("quiesce.workers")

COMMIT_EVERY = 0.1
"""Seconds between two commits while there is always something in hand. Where there is not, a commit comes at once."""

COMMIT_BOUND = 5.0
"""Seconds for one try while it runs."""

_STOPPING_WAIT = 0.1
"""Seconds between two tries once a stop is requested."""


class Commits:
    """The commits of one run of a consumer. Their task is `run`; the last ones are made by `finish`.

    Args:
        settled: called after each answer of a broker: something may be given back now, or is not ours any more.
    """

    def __init__(self, terms: Terms, window: Window, stop: Stop, settled: Callable[[], None]) -> None:
        self.standstill = Standstill(terms.name, "commit")
        self._consumer = terms.name
        self._source = terms.source
        self._window = window
        self._stop = stop
        self._settled = settled
        self._loop = asyncio.get_running_loop()
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._last = -inf
        self._since: float | None = None
        """When the first of the records began that are handled and not committed."""

    def handled(self, began: float) -> None:
        """Something was handled that began then."""
        if self._since is None:
            self._since = began
        if not self._window.left:
            self.at_once()
        elif self._timer is None and not self._due.is_set():
            at = max(self._last + COMMIT_EVERY, self._loop.time())
            self._timer = self._loop.call_at(at, self._due.set)

    def at_once(self) -> None:
        """Somebody waits for it: the group, or nobody has anything else to do."""
        self._due.set()

    async def run(self) -> None:
        while True:
            # Not bounded: it is an idle wait, and the end of the run cancels it.
            await self._due.wait()
            self._begin()
            wait = await self._round(COMMIT_BOUND)
            if wait is not None:
                # A rebalance waits for no backoff.
                leaving = any(part.leaving for part in self._window.parts.values())
                await asyncio.sleep(min(wait, _STOPPING_WAIT) if leaving else wait)
                self._due.set()

    async def finish(self, within: float) -> None:
        """The last commits, once nothing more is in hand: for `within` seconds, or until there is nothing left."""
        give_up_at = self._loop.time() + within
        while self._window.to_commit():
            self._begin()
            wait = await self._round(give_up_at - self._loop.time())
            if wait is None:
                continue
            if self._loop.time() + _STOPPING_WAIT >= give_up_at:
                return
            await asyncio.sleep(_STOPPING_WAIT)

    async def try_once(self, within: float) -> None:
        """One bounded try, of a consumer that is being aborted."""
        self._begin()
        try:
            async with asyncio.timeout(within):
                await self._round(within)
        except TimeoutError:
            log.warning("%s: aborted before its commit; its records come again", self._consumer)

    def _begin(self) -> None:
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._last = self._loop.time()

    async def _round(self, bound: float) -> float | None:
        """Commits all there is to commit. Returns how long to wait before it is tried again; None if it went well."""
        for offsets in self._window.to_commit():
            try:
                deadline = Deadline(self._loop.time() + max(0.0, bound))
                await self._source.commit(offsets.by_partition(), offsets.number, deadline, beyond=offsets.beyond())
            except CommitRefused as error:
                # Of some partition. Whoever is told looks which are still ours; those come with the next round.
                log.info("%s: %s", self._consumer, error)
                self._settled()
                return self.standstill.failed(error) if self._still_there(offsets) else 0.0
            except Unavailable as error:
                return self.standstill.failed(error)
            self._confirm(offsets)
        # All of it went well, or what did not has gone to others.
        self.standstill.works()
        return None

    def _still_there(self, offsets: Offsets) -> bool:
        """Whether nobody has taken away what was refused: the client does not know yet that it is lost."""
        return all(not part.dropped for part in offsets.places)

    def _confirm(self, offsets: Offsets) -> None:
        began, self._since = self._since, None
        records = self._window.confirmed(offsets)
        if records:
            now = self._loop.time()
            self._stop.tell(BatchHandled(self._consumer, records, now - (now if began is None else began)))
        reach(points.COMMITTED)
        self._settled()
