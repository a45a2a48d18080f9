"""One call of `publish`: which of its events have been answered, and how."""

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

from confluent_kafka import KafkaError, Message

from quiesce.kafka.blocking import on_loop
from quiesce.outbox.answers import Answers
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Outcome

Judge = Callable[[KafkaError, Message], Outcome | None]
"""What a refusal means for one event; None leaves its fate unknown."""


class Flight:
    """The outcomes of one call, filled as delivery reports come in.

    Reports come on the poller's thread and, while many are handed over, on the loop's. No lock is taken for each: an
    answer is an append, and whoever appends the last one sees that nothing is missing. `_expected` is set by the loop
    once it has handed over the last, and it looks, too. The loop is crossed once for a call.
    """

    __slots__ = ("_acked", "_done", "_expected", "_judge", "_loop", "_others", "events", "outcomes")

    def __init__(self, judge: Judge, events: Sequence[ClaimedEvent]) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._judge = judge
        self._expected = -1
        self._others: list[UUID] = []
        """Events with a report that was no ack, or that were not handed over."""
        self.events = events
        self.outcomes = Answers(events)
        self._acked = self.outcomes.acked

    def answer(self, event: ClaimedEvent, error: KafkaError | None, message: Message) -> None:
        """The delivery report of one event. Called on the poller's thread or the loop's."""
        if error is None:
            self._acked.append(event)
        else:
            outcome = self._judge(error, message)
            if outcome is not None:
                self.outcomes.refused[event.id] = outcome
            self._others.append(event.id)
        if len(self._acked) + len(self._others) == self._expected:
            on_loop(self._loop, self.finish)

    def refuse(self, event_id: UUID, outcome: Outcome) -> None:
        """An event that is not handed over at all."""
        self.outcomes.refused[event_id] = outcome
        self._others.append(event_id)

    def handed_over(self) -> None:
        """All events of the call were handed over or refused: their answers are all that is missing."""
        self._expected = len(self.events)
        if len(self._acked) + len(self._others) >= self._expected:
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
