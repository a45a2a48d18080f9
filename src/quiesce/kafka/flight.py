"""One call of `publish`: which of its events have been answered, and how."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from confluent_kafka import KafkaError, Message

from quiesce.outbox.answers import Answers
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Outcome

Judge = Callable[[KafkaError, Message, ClaimedEvent], tuple[Outcome | None, Callable[[], None] | None]]
"""What a refusal means for one event, and what is to be called once that is noted, if anything. None for the outcome
leaves its fate unknown."""

Report = Callable[[KafkaError | None, Message], None]
"""What librdkafka calls with the delivery report of one event."""


class Reports:
    """The delivery reports of one call, by the places of its events: the callables that librdkafka gets.

    They are made once, and one call after the other uses them: an object for each event would be most of what a
    relay makes, and the interpreter looks through all that was made, again and again. A call that ends while
    answers are missing keeps its own: a report that comes late must not be taken for another call's.
    """

    __slots__ = ("_acked", "_of_place", "_refuse", "first", "last")

    def __init__(self) -> None:
        self._of_place: list[Report] = [self._answer_first]
        self._acked: list[int] = []
        self._refuse: Callable[[int, KafkaError, Message], None]
        self.first: Message | None = None
        """The first of the call, if it was acked."""
        self.last: Message | None = None
        """What was acked last."""

    def begin(self, flight: "Flight") -> Sequence[Report]:
        """For each of the flight's events, by its place, what to call with its report."""
        self._acked, self._refuse = flight.outcomes.acked, flight.report_refused
        self.first = self.last = None
        return self.up_to(len(flight.events))

    def up_to(self, places: int) -> Sequence[Report]:
        """The same for so many places."""
        for place in range(len(self._of_place), places):
            self._of_place.append(partial(self._answer, place))
        return self._of_place

    def _answer(self, place: int, error: KafkaError | None, message: Message) -> None:
        """Called on the poller's thread or the loop's, a hundred thousand times a second."""
        if error is None:
            self._acked.append(place)
            self.last = message
        else:
            self._refuse(place, error, message)

    def _answer_first(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.first = message
        self._answer(0, error, message)


class Flight:
    """The outcomes of one call, filled as delivery reports come in.

    Reports come on the poller's thread and, while many are handed over, on the loop's. No lock is taken for each: an
    answer is an append. Whoever has served some asks `answered`, and so does the loop once it has handed over the
    last: one of the two sees that nothing is missing.
    """

    __slots__ = (
        "_expected",
        "_grown",
        "_judge",
        "_others",
        "_reports",
        "_woken",
        "began",
        "events",
        "outcomes",
        "over",
        "reports",
    )

    def __init__(self, judge: Judge, events: Sequence[ClaimedEvent], reports: Reports, began: float = 0.0) -> None:
        """`began`: when the call was made, in seconds of the loop's clock."""
        self.over = False
        """Whether the call has ended."""
        self.began = began
        self._woken: asyncio.Future[None] | None = None
        self._judge = judge
        self._expected = -1
        self._grown = False
        self._others: list[UUID] = []
        """Events with a report that was no ack, or that were not handed over."""
        self.events = events
        self.outcomes = Answers(events)
        self._reports = reports
        self.reports = reports.begin(self)
        """By place."""

    def report_refused(self, place: int, error: KafkaError, message: Message) -> None:
        """A delivery report that is no ack. Called on the poller's thread or the loop's."""
        event = self.events[place]
        outcome, then = self._judge(error, message, event)
        if outcome is not None:
            self.outcomes.refused[event.id] = outcome
        self._others.append(event.id)
        if then is not None:
            # Only now: it may end this call, which then has the outcome.
            then()

    def refuse(self, event_id: UUID, outcome: Outcome) -> None:
        """An event that is not handed over at all."""
        self.outcomes.refused[event_id] = outcome
        self._others.append(event_id)

    def handed_over(self) -> None:
        """All events of the call were handed over or refused: their answers are all that is missing."""
        self._expected = len(self.events)
        if self.answered:
            self.finish()

    def grown(self) -> None:
        """The sequence of its events has grown: their answers are missing, too."""
        self._expected = len(self.events)
        self._grown = True
        self.reports = self._reports.up_to(self._expected)

    @property
    def refused(self) -> bool:
        """Whether anything of it was answered by something else than an ack, or not handed over."""
        return bool(self._others)

    @property
    def answered(self) -> bool:
        """Whether nothing is missing. From any thread."""
        return len(self.outcomes.acked) + len(self._others) == self._expected

    def finish(self) -> None:
        """Ends the call with what has been answered until now."""
        self.over = True
        if self.answered:
            # The first of a call that grew: what was added was handed over later.
            measured = self._reports.first if self._grown else self._reports.last
            self.outcomes.seconds = None if measured is None else measured.latency()
        if self._woken is not None:
            _wake(self._woken)

    def spare(self) -> Reports | None:
        """What another call may use for its reports; None while some of this one may yet come."""
        return self._reports if self.answered else None

    @property
    def unanswered(self) -> list[ClaimedEvent]:
        """The events without an outcome, handed over or not."""
        return [event for event in self.events if event.id not in self.outcomes]

    async def wait(self, seconds: float) -> bool:
        """Whether the call has ended, within so many seconds."""
        if not self.over:
            # Waited for with every call, so it is made of what costs least.
            loop = asyncio.get_running_loop()
            self._woken = loop.create_future()
            late = loop.call_later(seconds, _wake, self._woken)
            try:
                await self._woken
            finally:
                late.cancel()
        return self.over


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
