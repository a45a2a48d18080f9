"""How a consumer fetches: ahead of its handlers, of the partitions that have room, whatever the handlers do."""

import asyncio
from collections.abc import Callable, Sequence

from quiesce.errors import Unavailable
from quiesce.inbox.delivered import Delivered
from quiesce.inbox.record import Batch, Record, TopicPartition
from quiesce.inbox.window import Window
from quiesce.lifecycle.crash_points import reach
from quiesce.lifecycle.ports import Stop
from quiesce.workers import points
from quiesce.workers.standstill import StandingPartitions, Standstill
from quiesce.workers.starts import Starts
from quiesce.workers.terms import Terms


class Fetches:
    """The fetches of one run of a consumer. Their task is `run`.

    Args:
        thrown_away: told of partitions that went and came back meanwhile.
        begin: called when there is something that may begin.
    """

    def __init__(
        self,
        terms: Terms,
        window: Window,
        stop: Stop,
        starts: Starts,
        thrown_away: Callable[[Sequence[Delivered]], None],
        begin: Callable[[], None],
    ) -> None:
        self.standstill = Standstill(terms.name, "fetch")
        self.standing = StandingPartitions(terms.name, window)
        self.counting = Standstill(terms.name, "count starts")
        self._terms = terms
        self._source = terms.source
        self._window = window
        self._stop = stop
        self._starts = starts
        self._thrown_away = thrown_away
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._full: frozenset[TopicPartition] = frozenset()
        self._bound: asyncio.Timeout | None = None

    async def run(self) -> None:
        """Fetches until it is cancelled.

        Raises:
            Exception: what is no outage.
        """
        while not self._stop.requested:
            batch = await self._fetch()
            self.standing.look(self._window.full())
            if batch is not None and batch.records and self._starts.counted:
                await self._count(batch.records)

    def room(self) -> None:
        """Partitions may have room again: a fetch that waits without them is made anew."""
        if self._full and self._bound is not None and self._window.full() != self._full:
            self._bound.reschedule(self._loop.time())
            self._bound = None

    async def _fetch(self) -> Batch | None:
        self._full = self._window.full()
        bound = self._bound = asyncio.timeout(None)
        wait = 0.0
        try:
            async with bound:
                # Awaited here and not in a task of its own: what it brings is in the window in the same step, so
                # that there is no moment in which the source has handed out what the window does not know.
                batch = await self._source.fetch(self._terms.batch, full=self._full)
                self._deliver(batch)
                return batch
        except TimeoutError:
            if not bound.expired():
                raise
        except Unavailable as error:
            wait = self.standstill.failed(error)
        finally:
            self._bound = None
        if wait:
            await self._stop.sleep(wait)
        return None

    def _deliver(self, batch: Batch) -> None:
        self.standstill.works()
        if not batch.records:
            return
        checked = not self._starts.counted
        stale = self._window.deliver(batch.records, batch.assignment, self._source.ours, checked=checked)
        reach(points.FETCHED)
        if stale:
            self._thrown_away(stale)
        if checked:
            self._begin()

    async def _count(self, records: Sequence[Record]) -> None:
        """Asks whether these were begun before and never ended. Until that is known, none begins."""
        while not self._stop.requested:
            try:
                suspect = await self._starts.begin(records)
            except Unavailable as error:
                await self._stop.sleep(self.counting.failed(error))
                continue
            self.counting.works()
            self._window.check(suspect=suspect)
            self._begin()
            return
