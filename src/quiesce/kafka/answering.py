"""The calls that wait for a producer's delivery reports: who serves these, and when a call that is answered ends."""

import asyncio
import time
from collections.abc import Callable, Sequence
from math import inf

from confluent_kafka import KafkaError, Producer

from quiesce.kafka.blocking import on_loop
from quiesce.kafka.flight import Flight, Judge, Reports
from quiesce.kafka.poller import Poller, serve_once
from quiesce.outbox.event import ClaimedEvent

_EVERY = 0.001
"""Seconds between two looks of the loop at the delivery reports, while it serves them."""
_MOMENT = 0.1
"""Seconds that it goes on after the last large call was handed over."""

_FEW = 10
"""Events of a call, at most, that may end late."""
_LATE = 0.02
"""Seconds that it may: several calls then end in one turn of the loop, and are settled together."""


class Answering:
    """Those of one producer. Made and used on the loop's thread.

    Args:
        on_error: of the producer; it may be called on the poller's thread.
        usable: whether anything more may be handed over.
        late: see `may_answer_late`.
    """

    def __init__(
        self, producer: Producer, on_error: Callable[[KafkaError], None], usable: Callable[[], bool], late: bool
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._producer: Producer | None = producer
        self._on_error = on_error
        self._usable = usable
        self._late = late
        self._answered_since = inf
        self._spare_reports: list[Reports] = []
        self._turn: asyncio.TimerHandle | None = None
        """When the loop serves reports next, while it is the one to do so."""
        self._loop_serves_until = 0.0
        self.flights: set[Flight] = set()
        # Last: its thread begins at once.
        self._poller = Poller([producer], on_error, self._served)

    def begin(self, events: Sequence[ClaimedEvent], judge: Judge) -> Flight:
        """A call begins; `end` is called with it in any case."""
        flight = Flight(judge, events, self._spare_reports.pop() if self._spare_reports else Reports())
        self.flights.add(flight)
        if len(events) > _FEW:
            self._poller.be_prompt()
        return flight

    def end(self, flight: Flight) -> None:
        self.flights.discard(flight)
        reports = flight.spare()
        if reports is not None:
            self._spare_reports.append(reports)

    def handed_over(self) -> None:
        """Reports are to be expected."""
        self._poller.handed_over()

    def queued(self) -> int:
        """Messages handed over and not answered."""
        return 0 if self._producer is None else len(self._producer)

    def serve(self) -> None:
        """Serves the delivery reports that are there, on the loop's thread. Never waits, but for a broken producer."""
        if self._producer is not None and serve_once(self._producer, 0.0, self._on_error):
            self._finish_answered()

    def serve_by_loop(self) -> None:
        """Much is handed over: until it is answered, and a moment longer, the loop serves the reports, and the poller's
        thread stands back.

        The thread would have to fight the busy loop for the interpreter, report by report. It does so where it polls
        when they come; hence the moment, in which the next call is made.
        """
        self._loop_serves_until = self._loop.time() + _MOMENT
        if self._turn is None and self._usable():
            self._poller.stand_back()
            self._turn = self._loop.call_later(_EVERY, self._serve_in_turn)

    def _serve_in_turn(self) -> None:
        self._turn = None
        goes_on = self.queued() or self._loop.time() < self._loop_serves_until
        if goes_on and self._usable() and not self._poller.hurries:
            self.serve()
            self._turn = self._loop.call_later(_EVERY, self._serve_in_turn)
        else:
            self._poller.take_over()

    def serve_by_thread(self) -> None:
        """The poller's thread serves them again, since nothing more is handed over."""
        self._poller.take_over()

    def hurry(self) -> None:
        """What is handed over does not wait for a fuller batch, until `calm_down`."""
        self._poller.hurry()

    def calm_down(self) -> None:
        self._poller.calm_down()

    def may_answer_late(self, late: bool) -> None:
        """Whether calls of a few events may end up to `_LATE` after their last answer. If not any more, those that
        are answered end now."""
        self._late = late
        if not late:
            self._poller.be_prompt()
            self._finish_answered()

    def finish_all(self) -> None:
        """Ends every call with what it has."""
        for flight in tuple(self.flights):
            flight.finish()

    def drop(self) -> None:
        """Has the poller's thread destroy the producer: its destructor may wait for brokers."""
        self._producer = None
        self._poller.stop()

    def is_gone(self) -> bool:
        """Whether that is done."""
        return self._poller.is_gone()

    def _served(self) -> float:
        """Called on the poller's thread. For how many seconds the end of calls that are answered may wait for others.

        Where events come one by one, each of them would otherwise wake the loop, and be settled, for itself.
        """
        answered = self._answered()
        if answered:
            now = time.monotonic()
            self._answered_since = min(self._answered_since, now)
            late = self._answered_since + _LATE - now
            if self._late and late > 0 and all(len(one.events) <= _FEW for one in tuple(self.flights)):
                return late
            on_loop(self._loop, self._finish_answered)
        self._answered_since = inf
        return 0.0

    def _finish_answered(self) -> None:
        for flight in self._answered():
            flight.finish()

    def _answered(self) -> list[Flight]:
        """Calls that miss nothing. From any thread."""
        return [flight for flight in tuple(self.flights) if flight.answered]
