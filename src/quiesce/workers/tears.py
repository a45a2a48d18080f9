"""Handlers that are torn: at their bound, or as their partition goes. Who does not end then ends the run."""

import asyncio
from collections.abc import Callable, Collection
from math import inf

from quiesce.errors import HandlerStuck
from quiesce.workers.call import Call
from quiesce.workers.failures import key_digest
from quiesce.workers.starts import Starts
from quiesce.workers.terms import Terms

STUCK_AFTER = 5.0
"""Seconds after which a cancelled handler that has not ended counts as one that never will."""

AGAIN_AFTER = (3.0, 3.7, 4.4)
"""Seconds after which one that has not ended is cancelled again. Where a server hangs, a driver waits for ever for the
answer to a rollback, and then for that to giving the connection back: each takes a cancel of its own."""


class Tears:
    """Those of one run of a consumer.

    Args:
        running: the calls in hand.
        fail: ends the run with an error.
    """

    def __init__(
        self,
        terms: Terms,
        starts: Starts,
        running: Callable[[], Collection[Call]],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._name = terms.name
        self._bound = terms.handler_bound
        self._starts = starts
        self._running = running
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._watchdog: asyncio.TimerHandle | None = None
        self._over = False

    def began(self) -> None:
        """A call has begun: it is looked at once its bound is over."""
        if self._watchdog is None and self._bound is not None:
            self._watchdog = self._loop.call_later(self._bound, self._look_for_overdue)

    def fence(self, call: Call, why: str) -> None:
        """Tears it though it did nothing wrong. Whatever comes of it is no outcome."""
        if call.fenced is None:
            call.fence(why)
            self._follow(call, why)

    def close(self) -> None:
        self._over = True
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _look_for_overdue(self) -> None:
        bound = self._bound
        assert bound is not None
        self._watchdog = None
        now = self._loop.time()
        nearest = inf
        for call in list(self._running()):
            if call.overdue or call.fenced is not None:
                continue
            if call.handler_began is not None and now >= call.handler_began + bound:
                call.overdue = True
                why = f"it took longer than {bound:g} s"
                call.tear(why)
                self._follow(call, why)
            else:
                nearest = min(nearest, bound + (now if call.handler_began is None else call.handler_began))
        if nearest < inf:
            self._watchdog = self._loop.call_at(nearest, self._look_for_overdue)

    def _follow(self, call: Call, why: str) -> None:
        for seconds in AGAIN_AFTER:
            self._loop.call_later(seconds, self._again, call, why)
        self._loop.call_later(STUCK_AFTER, self._stuck, call)

    def _has_ended(self, call: Call) -> bool:
        """What follows a handler's end, such as setting the record aside, has a bound of its own."""
        return call.task is None or call.task.done() or self._over or call.handler_began is None

    def _again(self, call: Call, why: str) -> None:
        if not self._has_ended(call):
            call.tear(why)

    def _stuck(self, call: Call) -> None:
        if self._has_ended(call):
            return
        # It does end its process, and so must not be told as over, whenever it ends.
        call.noted = False
        self._starts.keep(call.piece.records)
        error = HandlerStuck(
            f"{self._name}: the handler of {call.piece} (key {key_digest(call.piece.records[0])}) was cancelled "
            f"{STUCK_AFTER:g} s ago ({call.fenced or 'it took too long'}) and has not ended: it may write over what a "
            "new owner does, so the process has to end"
        )
        self._fail(error)
