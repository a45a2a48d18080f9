"""What a consumer does when partitions go: drains first, fences second, and lets go of nothing that it still does."""

import asyncio
import logging
from collections.abc import Sequence
from itertools import chain
from math import inf

from quiesce.inbox.delivered import Delivered
from quiesce.inbox.events import CommitLate
from quiesce.inbox.record import Record
from quiesce.inbox.window import Window
from quiesce.lifecycle.ports import Stop
from quiesce.workers.calls import Calls
from quiesce.workers.commits import Commits
from quiesce.workers.starts import Starts
from quiesce.workers.terms import Terms

log = logging.getLogger("quiesce.workers")


class Revokes:
    """Follows the source's partitions for one run of a consumer.

    Of a partition that is being taken away, what waits below the last record that has begun still begins, while there
    is time for it to end, so that all that was done can be committed. What has begun may end within the bound, less a
    share for a rollback and the last commit. Then its handlers are cancelled, so that their transactions have rolled
    back when the next owner begins. One that was lost is not waited for: its handlers are cancelled at once.
    """

    def __init__(
        self, terms: Terms, window: Window, stop: Stop, starts: Starts, calls: Calls, commits: Commits
    ) -> None:
        self._name = terms.name
        self._source = terms.source
        self._revoke_bound = terms.revoke_bound
        self._window = window
        self._stop = stop
        self._starts = starts
        self._calls = calls
        self._commits = commits
        self._fences: dict[Delivered, Sequence[asyncio.TimerHandle]] = {}
        self._noting: dict[Delivered, asyncio.Task[None]] = {}
        self._last_begin: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def look(self) -> None:
        """Compares what the window has with what is ours."""
        for event in self._source.news(self._name):
            self._stop.tell(event)
        leaving = self._source.leaving
        for part in list(self._window.parts.values()):
            if not self._source.ours(part.newest, part.source):
                self._lost(part)
            elif part.source in leaving:
                self._leave(part)
                self._fence_in_time(part)
        self.settle()

    def thrown_away(self, parts: Sequence[Delivered]) -> None:
        """These went and came back before anybody looked."""
        for part in parts:
            self._lost(part)

    def hand_back(self, within: float) -> None:
        """Everything above the last record that has begun. What waits below may begin, if it can end in so many
        seconds."""
        for part in list(self._window.parts.values()):
            self._leave(part)
        # Of what a stop leaves, some is kept for the last commit.
        last_begin = self._last_begin_in(within, 0.8 * within)
        if last_begin <= 0:
            self._begin_no_more()
        elif last_begin < inf:
            self._last_begin = self._loop.call_later(last_begin, self._begin_no_more)
        self.settle()

    def settle(self) -> None:
        """Gives back what is being taken away, as far as nothing of it is in hand and all that is done is committed."""
        for part in list(self._window.parts.values()):
            if not part.leaving or part in self._noting:
                continue
            if part.handed_back:
                left, part.handed_back = part.handed_back, []
                self._note(part, left)
            if part.left or part.in_hand or part in self._noting:
                continue
            if part.place() > part.committed:
                self._commits.at_once()
            else:
                self._put_away(part)

    async def close(self, within: float) -> None:
        """Puts everything away, once what is being noted is noted."""
        for fence in chain(*self._fences.values(), (self._last_begin,)):
            if fence is not None:
                fence.cancel()
        self._begin_no_more()
        if self._noting:
            await asyncio.wait(set(self._noting.values()), timeout=within)
        for part in list(self._window.parts.values()):
            self._put_away(part)

    def _leave(self, part: Delivered) -> None:
        if not part.leaving:
            self._window.leave(part, self._loop.time())

    def _begin_no_more(self) -> None:
        for part in list(self._window.parts.values()):
            if part.leaving:
                self._window.begin_no_more(part)
        self.settle()

    def _lost(self, part: Delivered) -> None:
        """Somebody else may have it already."""
        for call in list(self._calls.running()):
            if part in call.piece.partitions:
                self._calls.fence(call, "its partition is not ours any more")
        if part.handled:
            self._stop.tell(CommitLate(self._name, part.handled))
            part.handled = 0
        self._note(part, [*part.handed_back, *part.waiting()])
        self._put_away(part)

    def _note(self, part: Delivered, left: Sequence[Record]) -> None:
        """Notes, where starts are counted, that these have not killed the process. Of suspects, and of those nobody has
        asked about, nothing was noted, and what is known of them has to stay."""
        if not self._starts.counted:
            return
        noted = [record for record in left if part.suspect_until <= record.offset < part.unchecked_from]
        if noted:
            task = self._loop.create_task(
                self._starts.end(noted), name=f"{self._name}: hands back {len(noted)} records"
            )
            self._noting[part] = task
            task.add_done_callback(lambda _: self._noted(part))

    def _noted(self, part: Delivered) -> None:
        self._noting.pop(part, None)
        self.settle()

    def _put_away(self, part: Delivered) -> None:
        """Nothing of it is in hand any more, under whatever number it was handed out."""
        for fence in self._fences.pop(part, ()):
            fence.cancel()
        for number in list(part.numbers) or [part.newest]:
            self._source.done(number, (part.source,))
        self._window.drop(part)

    def _fence_in_time(self, part: Delivered) -> None:
        if (part.in_hand or part.left) and part not in self._fences:
            bound = self._revoke_bound
            fence = bound - min(1.0, bound / 4)
            last_begin = self._last_begin_in(bound, fence)
            if last_begin <= 0:
                self._window.begin_no_more(part)
            self._fences[part] = (
                self._loop.call_later(last_begin, self._begin_no_more_of, part),
                self._loop.call_later(fence, self._fence, part),
            )

    def _last_begin_in(self, bound: float, end: float) -> float:
        """Seconds in which something may still begin that has to end in `end` seconds: half of the bound, or less where
        a handler takes long. None shall be cancelled only because it began too late."""
        return max(0.0, min(bound / 2, end - 2 * self._calls.longest()))

    def _begin_no_more_of(self, part: Delivered) -> None:
        self._window.begin_no_more(part)
        self.settle()

    def _fence(self, part: Delivered) -> None:
        for call in list(self._calls.running()):
            if part in call.piece.partitions:
                log.warning("%s: %s was not done before its partition had to go: torn", self._name, call.piece)
                self._calls.fence(call, "its partition is taken away")
