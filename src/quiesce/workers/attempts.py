"""One try at the records of a piece: looked at, handled, and what becomes of them where that fails."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from quiesce.errors import Unavailable
from quiesce.inbox import reason, retry_headers
from quiesce.inbox.delivered import Trouble
from quiesce.inbox.events import CommitLate, DuplicatesAnswered
from quiesce.inbox.once import Duplicates, Values
from quiesce.inbox.piece import Handled, Held, Outage, Outcome, Piece, Place, PutBack, place_of
from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Record
from quiesce.lifecycle.crash_points import reach
from quiesce.lifecycle.ports import Stop
from quiesce.workers import points
from quiesce.workers.bad_input import Sieve
from quiesce.workers.call import Call
from quiesce.workers.failures import Failures, HandlerTooLong, trouble_for
from quiesce.workers.iteration import CancelledFromInside, unless_aborted
from quiesce.workers.starts import Starts
from quiesce.workers.terms import Terms

log = logging.getLogger("quiesce.workers")


class Attempts:
    """The tries of one run of a consumer."""

    def __init__(self, terms: Terms, stop: Stop, starts: Starts) -> None:
        self.failures = Failures(terms, stop, starts)
        self._terms = terms
        self._stop = stop
        self._starts = starts
        self._sieve = Sieve(terms.handlers, terms.decode, terms.bad_input)
        self._now = asyncio.get_running_loop().time
        self._run = asyncio.current_task()

    async def make(self, call: Call) -> Outcome:
        """What came of one try at the piece. A cancel passes.

        Raises:
            BadRecord: a record that no handler can take, where the policy is to stop.
        """
        piece = call.piece
        trouble = _trouble_of(piece)
        # One that begins by itself is noted by itself, and not before it really begins.
        call.noted = not piece.alone and trouble is None
        if trouble is not None and trouble.reason is not None:
            # Given up already; what is missing is that somebody takes it.
            return await self._give_up(call, trouble, trouble.reason)
        until = self._not_yet(piece)
        if until:
            return Held(until)
        if self._starts.counted and (piece.alone or trouble is not None):
            outcome = await self._begin_counted(call)
            if outcome is not None:
                return outcome
        sifted = self._sieve.sift(piece.records)
        if sifted.bad:
            held = await self.failures.bad(piece, sifted.bad)
            if held is not None:
                return held
            if not sifted.good:
                return Handled()
        return await self._handle(call, sifted.good, sifted.values)

    def _not_yet(self, piece: Piece) -> Mapping[Place, float]:
        """The records of our retry topic whose time has not come. Where the first has not come back, none has."""
        until: dict[Place, float] = {}
        for _, records in piece.shares():
            if records and self._terms.came_back(records[0]):
                now, wall = self._now(), self._terms.wall()
                for record in records:
                    at = retry_headers.not_before(record) if self._terms.came_back(record) else None
                    if at is not None and at > wall:
                        until[place_of(record)] = now + (at - wall)
                        # It waits by itself, so its start is noted by itself.
                        trouble_for(piece, record)
        return until

    async def _begin_counted(self, call: Call) -> Outcome | None:
        """Notes the start of one that begins by itself; what has killed too many processes does not begin."""
        piece, record = call.piece, call.piece.records[0]
        try:
            deaths = await self._starts.begin_alone(record)
        except Unavailable as error:
            return Outage(self._now() + self.failures.standstill.failed(error))
        if deaths < self._terms.deaths:
            call.noted = True
            return None
        why = f"{record} was in hand at {deaths} deaths of its process"
        log.error("%s: %s: it is not begun again", self._terms.name, why)
        killed = Reason(reason.KILLED_ITS_PROCESS, "", why, deaths, self._terms.name)
        return await self._give_up(call, trouble_for(piece, record), killed)

    async def _give_up(self, call: Call, trouble: Trouble, why: Reason) -> Outcome:
        outcome = await self.failures.give_up(call.piece, call.piece.records[0], trouble, why)
        # What is known of its deaths has to stay until somebody has it.
        call.noted = isinstance(outcome, Handled)
        return outcome

    async def _handle(self, call: Call, good: Sequence[Record], values: list[Any]) -> Outcome:
        handler = self._terms.handlers.of(good[0])
        assert handler is not None  # the sieve has seen to it
        first: Any = list(good) if self._terms.in_batches else good[0]
        arguments = self._terms.args
        if self._terms.decode is not None:
            arguments = (Values(values) if self._terms.in_batches else values[0], *arguments)
        reach(points.HANDLING)
        call.handler_began = self._now()
        worked = self.failures.standstill.worked
        try:
            answer = await unless_aborted(handler(first, *arguments))
        except asyncio.CancelledError as error:
            call.handler_began = None
            if call.fenced is not None or self._torn():
                raise
            _uncancel()
            if call.overdue:
                return await self.failures.failed(call.piece, good, self._too_long(worked, error))
            # Nobody here has cancelled it. Taken for an abort, it would begin again at once, and for ever.
            own = CancelledFromInside("the handler's task was cancelled by the handler itself")
            own.__cause__ = error
            return await self.failures.failed(call.piece, good, own)
        except Exception as error:  # noqa: BLE001 - judged and logged
            call.handler_began = None
            if call.fenced is not None:
                # What it made of its cancel. An abort is not an outcome.
                return PutBack()
            if call.overdue:
                _uncancel()
                return await self.failures.failed(call.piece, good, self._too_long(worked, error))
            return await self.failures.failed(call.piece, good, error)
        call.handler_began = None
        if call.fenced is not None:
            # It has swallowed its cancel, and nobody knows what it left undone.
            if late := sum(size for part, size in call.piece.parts if part.dropped):
                self._stop.tell(CommitLate(self._terms.name, late))
            return PutBack()
        if call.overdue:
            _uncancel()
            return await self.failures.failed(call.piece, good, self._too_long(worked))
        self.failures.standstill.works()
        if isinstance(answer, Duplicates):
            self._stop.tell(DuplicatesAnswered(self._terms.name, answer.records))
        reach(points.HANDLED)
        return Handled()

    def _torn(self) -> bool:
        """Whether all tasks are being cancelled, such as by a host that tears its loop down."""
        return self._stop.requested or (self._run is not None and self._run.cancelling() > 0)

    def _too_long(self, worked: int, ended_with: BaseException | None = None) -> Exception:
        """What a handler has come to that was cancelled at its bound. Where its database did not answer to that either,
        such as to the rollback, it hung because of an outage."""
        for said in (ended_with, ended_with and ended_with.__cause__):
            if isinstance(said, Unavailable):
                return said
        bound = self._terms.handler_bound
        return HandlerTooLong(f"the handler took longer than handler_bound, {bound:g} s", worked)


def _trouble_of(piece: Piece) -> Trouble | None:
    """What has gone wrong with a record that begins by itself."""
    if piece.of_key is None or not piece.of_key.part.troubles:
        return None
    return piece.of_key.part.troubles.get(piece.records[0].offset)


def _uncancel() -> None:
    """It may have been cancelled more than once."""
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass
