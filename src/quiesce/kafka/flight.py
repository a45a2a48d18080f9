"""One call of `publish`: which of its events have been answered, and how."""

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

from confluent_kafka import KafkaError, Message

from quiesce.kafka.blocking import on_loop
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import DISPATCHED, Outcome

Judge = Callable[[KafkaError, Message], Outcome | None]
"""What a refusal means for one event; None leaves its fate unknown."""


class Flight:
    """The outcomes of one call, filled by the poller's thread as delivery reports come in.

    Two threads write, each its own counter, so that no lock is taken for each message: the poller counts
    `_answered`, the loop sets `_expected` once it has handed over the last. Whoever comes second sees that
    both are equal. The loop is crossed once for a call.
    """

    __slots__ = ("_answered", "_done", "_expected", "_judge", "_loop", "_refused", "events", "outcomes")

    def __init__(self, judge: Judge, events: Sequence[ClaimedEvent]) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._judge = judge
        self._answered = 0
        self._expected = -1
        self._refused = 0
        self.events = events
        self.outcomes: dict[UUID, Outcome] = {}

    def answer(self, event_id: UUID, error: KafkaError | None, message: Message) -> None:
        """The delivery report of one event. Called on the poller's thread."""
        if error is None:
            self.outcomes[event_id] = DISPATCHED
        else:
            outcome = self._judge(error, message)
            if outcome is not None:
                self.outcomes[event_id] = outcome
        self._answered += 1
        if self._answered == self._expected:
            on_loop(self._loop, self.finish)

    def refuse(self, event_id: UUID, outcome: Outcome) -> None:
        """An event that is not handed over at all."""
        self.outcomes[event_id] = outcome
        self._refused += 1

    def handed_over(self, events: int) -> None:
        """All `events` of the call were handed over or refused: their answers are all that is missing."""
        self._expected = events - self._refused
        if self._answered >= self._expected:
            self.finish()

    def finish(self) -> None:
        """Ends the call with what has been answered until now."""
        if not self._done.done():
            self._done.set_result(None)

    @property
    def unanswered(self) -> list[ClaimedEvent]:
        """The events without an outcome, handed over or not."""
        return [event for event in self.events if event.id not in self.outcomes]

    async def wait(self, seconds: float) -> bool:
        """Whether the call has ended, within so many seconds."""
        await asyncio.wait({self._done}, timeout=seconds)
        return self._done.done()
