"""Records that leave their place: set aside for good, or put off to another topic."""

import asyncio
import logging
from collections.abc import Awaitable

from quiesce.errors import SetAsideRefused, Unavailable
from quiesce.inbox.delivered import Trouble
from quiesce.inbox.events import RecordPostponed, RecordSetAside
from quiesce.inbox.piece import Piece, place_of
from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Record
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Stop
from quiesce.workers.standstill import Standstill
from quiesce.workers.terms import Terms

log = logging.getLogger("quiesce.workers")

BOUND = 10.0
"""Seconds for one try to have a record kept elsewhere."""


class Asides:
    """Has records kept elsewhere before their offsets are committed. While that cannot be, their keys wait."""

    def __init__(self, terms: Terms, stop: Stop) -> None:
        self.standstill = Standstill(terms.name, "set records aside")
        self._terms = terms
        self._stop = stop
        self._now = asyncio.get_running_loop().time

    def what_now(self, *, over: bool, never: bool) -> str:
        """What happens to a record that failed, for people."""
        if not over:
            return "tried again later" if self._terms.retry_topic is not None else "its key waits for the next try"
        why = "it would fail again" if never else f"{self._terms.retries.attempts} attempts are enough"
        if self._terms.dead_letters is not None:
            return f"set aside, {why}"
        return f"{why}, but there are no dead letters (dead_letters=): its key waits, no record is skipped"

    async def set_aside(self, piece: Piece, record: Record, trouble: Trouble, why: Reason) -> float | None:
        """Gives it up. None once it is kept; else until when it has to wait."""
        assert self._terms.dead_letters is not None
        trouble.reason = why
        held = await self._keep(
            piece,
            record,
            trouble,
            self._terms.dead_letters.set_aside(self._terms.believed(record), why, self._deadline()),
        )
        if held is None:
            self._stop.tell(RecordSetAside(self._terms.name, record.topic, why.code))
        return held

    async def postpone(self, piece: Piece, record: Record, trouble: Trouble, why: Reason, wait: float) -> float | None:
        """Puts it off. None once it is kept; else until when it has to wait here."""
        assert self._terms.retry_topic is not None
        not_before = self._terms.wall() + wait
        put_off = self._terms.retry_topic.postpone(self._terms.believed(record), why, not_before, self._deadline())
        held = await self._keep(piece, record, trouble, put_off)
        if held is None:
            self._stop.tell(RecordPostponed(self._terms.name, record.topic))
        return held

    async def _keep(self, piece: Piece, record: Record, trouble: Trouble, keeping: Awaitable[None]) -> float | None:
        try:
            await keeping
        except SetAsideRefused as error:
            trouble.failures += 1
            log.error("%s: %s stays, and its key waits: %s", self._terms.name, record, error)
            return self._now() + self._terms.retries.backoff.ceiling
        except Unavailable as error:
            trouble.failures += 1
            self.standstill.failed(error)
            return self._now() + self._terms.retries.backoff.wait(trouble.failures)
        self.standstill.works()
        piece.settled.add(place_of(record))
        return None

    def _deadline(self) -> Deadline:
        # Of what a stop leaves, some is kept for the commit.
        return Deadline(self._now() + min(BOUND, 0.7 * self._stop.remaining()))
