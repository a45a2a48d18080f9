"""What a consumer does when partitions go: drains first, fences second, and lets go of nothing that it still does."""

import asyncio
import logging
from collections.abc import Sequence

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

    Of a partition that is being taken away nothing begins any more. What has begun may end within the bound, less a
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
        self._fences: dict[Delivered, asyncio.TimerHandle] = {}
        self._noting: dict[Delivered, asyncio.Task[None]] = {}
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

    def hand_back(self) -> None:
        """Everything that has not begun."""
        for part in list(self._window.parts.values()):
            self._leave(part)
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
            if part.handled or part.place() > part.committed:
                self._commits.at_once()
            else:
                self._put_away(part)

    async def close(self, within: float) -> None:
        """Puts everything away, once what is being noted is noted."""
        for fence in self._fences.values():
            fence.cancel()
        if self._noting:
            await asyncio.wait(set(self._noting.values()), timeout=within)
        for part in list(self._window.parts.values()):
            self._put_away(part)

    def _leave(self, part: Delivered) -> None:
        if not part.leaving:
            self._window.leave(part)

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
        if (fence := self._fences.pop(part, None)) is not None:
            fence.cancel()
        for number in list(part.numbers) or [part.newest]:
            self._source.done(number, (part.source,))
        self._window.drop(part)

    def _fence_in_time(self, part: Delivered) -> None:
        if part.in_hand and part not in self._fences:
            bound = self._revoke_bound
            self._fences[part] = self._loop.call_later(bound - min(1.0, bound / 4), self._fence, part)

    def _fence(self, part: Delivered) -> None:
        for call in list(self._calls.running()):
            if part in call.piece.partitions:
                log.warning("%s: %s was not done before its partition had to go: torn", self._name, call.piece)
                self._calls.fence(call, "its partition is taken away")
