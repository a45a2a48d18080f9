"""One run of a consumer: what it is made of, and how it is brought home when it is told to stop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from quiesce.errors import HandlerStuck
from quiesce.inbox.events import CommitLate, WindowMeasured
from quiesce.inbox.piece import Handled, Outcome, PutBack
from quiesce.inbox.window import Window
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Stop
from quiesce.workers.attempts import Attempts
from quiesce.workers.call import Call
from quiesce.workers.calls import Calls
from quiesce.workers.commits import COMMIT_BOUND, Commits
from quiesce.workers.fetches import Fetches
from quiesce.workers.iteration import unless_aborted
from quiesce.workers.revokes import Revokes
from quiesce.workers.standstill import Standstill
from quiesce.workers.starts import Starts
from quiesce.workers.terms import Terms

log = logging.getLogger("quiesce.workers")

LEAVE_BOUND = 5.0
"""Seconds to leave the group in, when the drain has that much left."""

LEAVE_AT_MOST = 0.8
"""Of what is left of the drain then, that leaving may take."""

LEAVE_SHARE = 0.4
"""How much of what is left of a short drain is kept for leaving the group."""

ABORT_BOUND = 1.0
"""Seconds for the last commit of a consumer that is being aborted. Its handlers have half of it before that."""

FAILED_BOUND = 5.0
"""Seconds that handlers have to end in when the consumer cannot go on."""

PUT_DOWN_BOUND = 1.0
"""Seconds that an idle wait has to end in once it is cancelled."""


class Consuming:
    """Holds the window of one run, and the tasks around it: one fetches, one commits, each call of a handler is one."""

    def __init__(self, terms: Terms, stop: Stop) -> None:
        self._terms = terms
        self._source = terms.source
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._window = window = Window(
            batch=terms.batch if terms.in_batches else None, ahead=terms.in_flight, free_nulls=terms.free_nulls
        )
        starts = Starts(terms.name, terms.starts)
        self._attempts = Attempts(terms, stop, starts)
        self._calls = Calls(
            terms, window, stop, self._attempts, starts, landed=self._landed, gone=self._look, fail=self._fail
        )
        self._commits = Commits(terms, window, stop, self._committed)
        self._revokes = Revokes(terms, window, stop, starts, self._calls, self._commits)
        self._fetches = Fetches(terms, window, stop, starts, self._revokes.thrown_away, self._calls.begin)
        self._over = False
        self._failure: BaseException | None = None
        self._broken = asyncio.Event()

    def standstills(self) -> tuple[Standstill, ...]:
        """What may keep it from getting on. Without a record in hand nobody knows whether a handler could."""
        of_records = (
            self._fetches.counting,
            self._fetches.standing.standstill,
            self._attempts.failures.standstill,
            self._attempts.failures.asides.standstill,
        )
        return (self._fetches.standstill, self._commits.standstill, *(of_records if self._window.left else ()))

    async def run(self) -> None:
        """Consumes until a stop.

        Raises:
            Exception: it cannot go on; what had begun is over and committed, as far as that could be.
        """
        self._source.watch(self._look)
        fetching = self._spawn(self._fetches.run, "fetches")
        committing = self._spawn(self._commits.run, "commits")
        try:
            await self._until_stop()
            await self._put_down(fetching)
            self._revokes.hand_back()
            await self._drain()
            await self._put_down(committing)
            await self._finish()
        except asyncio.CancelledError:
            await self._abort(fetching, committing)
            raise
        finally:
            self._over = True
            self._calls.close()
        if self._failure is not None:
            raise self._failure

    # While it runs.

    def _spawn(self, work: Callable[[], Awaitable[None]], what: str) -> asyncio.Task[None]:
        async def watched() -> None:
            try:
                await unless_aborted(work())
            except Exception as error:  # noqa: BLE001 - raised by the run, after all that has begun is over
                self._fail(error)

        return self._loop.create_task(watched(), name=f"{self._terms.name}: {what}")

    async def _until_stop(self) -> None:
        waits = [asyncio.ensure_future(self._stop.wait()), asyncio.ensure_future(self._broken.wait())]
        try:
            # Not bounded: that is what running means.
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits, timeout=PUT_DOWN_BOUND)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._calls.halted = True
            self._broken.set()

    def _landed(self, call: Call, outcome: Outcome, late: int) -> None:
        if late:
            self._stop.tell(CommitLate(self._terms.name, late))
        if isinstance(outcome, Handled) or call.piece.settled:
            self._commits.handled(call.began)
        elif not isinstance(outcome, PutBack):
            self._measure()
        self._revokes.settle()
        self._fetches.room()
        self._calls.begin()

    def _look(self) -> None:
        """The source's partitions have changed."""
        if not self._over:
            self._revokes.look()
            self._calls.begin()

    def _committed(self) -> None:
        self._revokes.look()
        self._measure()

    def _measure(self) -> None:
        window = self._window
        self._stop.tell(WindowMeasured(self._terms.name, window.left, window.waiting_keys, window.ahead()))

    # The end.

    async def _drain(self) -> None:
        """What has begun ends, and is committed meanwhile. Past the worker's deadline an abort ends the wait."""
        give_up_at = self._loop.time() + min(FAILED_BOUND, self._stop.remaining())
        while self._calls.running():
            left = self._stop.remaining()
            if self._failure is not None:
                left = 0.0 if isinstance(self._failure, HandlerStuck) else give_up_at - self._loop.time()
                if left <= 0:
                    await self._calls.tear("the consumer cannot go on", PUT_DOWN_BOUND)
                    return
            await self._calls.wait(left)

    async def _finish(self) -> None:
        """The last commits, and then the group is left, so that the others get the partitions at once."""
        # While the group rebalances its coordinator answers the join first and the commit after that, so the last
        # commits have all that a stop leaves, but for leaving the group.
        left = self._stop.remaining() if self._stop.requested else COMMIT_BOUND
        await self._commits.finish(left - min(LEAVE_BOUND, LEAVE_SHARE * left))
        if self._window.unconfirmed:
            self._stop.abandon("handled records without a commit", self._window.unconfirmed)
        await self._revokes.close(PUT_DOWN_BOUND)
        self._over = True
        if not self._stop.requested:
            # It failed, and may be begun again, with the same source.
            return
        # A member is let go only once its group is through with a rebalance, which may wait for another one's session
        # to run out. Everything is committed by now: that is no reason to be aborted at the deadline.
        bound = min(LEAVE_BOUND, LEAVE_AT_MOST * self._stop.remaining())
        try:
            closed = await self._source.close(Deadline(self._loop.time() + bound))
            if closed.forced:
                log.warning("%s: the group was not left in %.3g s: %s", self._terms.name, bound, closed.detail)
        except Exception:
            # Not the worker's failure: the service closes the source once more in its own part.
            log.exception("%s: could not leave the group", self._terms.name)

    async def _abort(self, *tasks: asyncio.Task[None]) -> None:
        for task in tasks:
            task.cancel()
        unfinished = await self._calls.tear("aborted", ABORT_BOUND / 2)
        await self._commits.try_once(ABORT_BOUND)
        if self._terms.on_drain != "cancel" and (left := unfinished + self._window.unconfirmed):
            self._stop.abandon("records of the batch in hand", left)
        self._over = True
        await self._revokes.close(0.0)
        await self._put_down(*tasks)

    async def _put_down(self, *tasks: asyncio.Task[None]) -> None:
        waiting = {task for task in tasks if not task.done()}
        for task in waiting:
            task.cancel()
        if waiting:
            _, hanging = await asyncio.wait(waiting, timeout=PUT_DOWN_BOUND)
            for task in hanging:
                log.warning("%s did not end in %g s", task.get_name(), PUT_DOWN_BOUND)
