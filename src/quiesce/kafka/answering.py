"""The calls that wait for a producer's delivery reports: who serves these, and when a call that is answered ends."""

import asyncio
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, Producer

from quiesce.kafka.blocking import on_loop
from quiesce.kafka.flight import Flight, Judge, Reports
from quiesce.kafka.poller import Poller, serve_once
from quiesce.outbox.event import ClaimedEvent

_EVERY = 0.001
"""Seconds between two looks at the delivery reports while some are to be expected."""
_MANY = 100
_MANY_EVERY = 0.004
"""The same for a call of so many events, while which is handed over there are looks besides."""
_SLOWER = 1.25
"""So many times as long is the next wait after a look that found nothing: a broker that is slow, or away, is not asked
a thousand times a second."""
_RESTS = 0.25
"""Seconds between two looks, at most. While nothing is handed over only errors may come, and they lead to nothing."""

_FEW = 10
"""Events of a call, at most, that may end late."""
_LATE = 0.03
"""Seconds that it may: several calls then end in one turn of the loop, and are settled together."""


class Answering:
    """Those of one producer. Made and used on the loop's thread.

    The loop serves the reports, by the clock. A thread that waited for them would have to fight the loop for the
    interpreter, report by report, and to wake it for each. It does so only where somebody waits for a producer that
    gathers batches, or where nothing more is handed over.

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
        self._spare_reports: list[Reports] = []
        self._pause = _EVERY
        self._turn: asyncio.TimerHandle | None = self._loop.call_later(_EVERY, self._look)
        """When the loop serves reports next."""
        self.flights: set[Flight] = set()
        # Last: its thread begins at once.
        self._poller = Poller([producer], on_error, self._served)

    def begin(self, events: Sequence[ClaimedEvent], judge: Judge) -> Flight:
        """A call begins; `end` is called with it in any case."""
        reports = self._spare_reports.pop() if self._spare_reports else Reports()
        flight = Flight(judge, events, reports, self._loop.time())
        self.flights.add(flight)
        return flight

    def end(self, flight: Flight) -> None:
        self.flights.discard(flight)
        reports = flight.spare()
        if reports is not None:
            self._spare_reports.append(reports)

    def handed_over(self) -> None:
        """Reports are to be expected."""
        self._pause = _EVERY
        self._look_within(self._wait())

    def queued(self) -> int:
        """Messages handed over and not answered."""
        return 0 if self._producer is None else len(self._producer)

    def serve(self) -> int:
        """Serves the delivery reports that are there, on the loop's thread. Never waits, but for a broken producer.

        Returns how many things it served."""
        if self._producer is None:
            return 0
        served = serve_once(self._producer, 0.0, self._on_error)
        if self.flights:
            self._finish_answered()
        return served

    def _look(self) -> None:
        self._turn = None
        if not self._usable() or self._poller.serves:
            return
        self._pause = _EVERY if self.serve() else min(_RESTS, _SLOWER * self._pause)
        self._turn = self._loop.call_later(self._wait(), self._look)

    def _look_within(self, seconds: float) -> None:
        at = self._loop.time() + seconds
        if self._turn is None or at < self._turn.when():
            self._look_no_more()
            self._turn = self._loop.call_at(at, self._look)

    def _look_no_more(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _wait(self) -> float:
        """Seconds until the next look: none but the last, for calls that end late. When the broker has answered each
        message tells."""
        # One that was ended a moment ago is here until its call goes on.
        began = [flight.began for flight in self.flights if not flight.over]
        if began and self._may_be_late():
            left = min(began) + _LATE - self._loop.time()
            if left > 0 or not self.queued():
                return max(self._pause, left)
        if not self.queued():
            return _RESTS
        if any(len(flight.events) >= _MANY for flight in self.flights):
            return max(self._pause, _MANY_EVERY)
        return self._pause

    def takes(self, flight: Flight, more: int) -> bool:
        """Whether so many events may yet be added to a call of a few: it is under way, and may end late for them. Not
        behind anything that was refused: what is answered by now is looked at first."""
        self.serve()
        return (
            self._late
            and not any(one.refused for one in self.flights)
            and not flight.over
            and flight in self.flights
            and len(flight.events) + more <= _FEW
            and self._loop.time() < flight.began + _LATE
        )

    def _may_be_late(self) -> bool:
        """Whether nobody waits for any of the calls to end: each event of a trickle would be settled for itself."""
        return self._late and all(len(flight.events) <= _FEW for flight in tuple(self.flights))

    def serve_by_thread(self) -> None:
        """The poller's thread serves them from now on, since nothing more is handed over."""
        self._look_no_more()
        self._poller.take_over()

    def hurry(self) -> None:
        """What is handed over does not wait for a fuller batch, until `calm_down`."""
        self._poller.hurry()

    def calm_down(self) -> None:
        self._poller.calm_down()
        self._look_within(_EVERY)

    def may_answer_late(self, late: bool) -> None:
        """Whether calls of a few events may end up to `_LATE` after their last answer. If not any more, those that
        are answered end now."""
        self._late = late
        if not late and self.flights:
            self.serve()
            self._look_within(_EVERY)

    def finish_all(self) -> None:
        """Ends every call with what it has."""
        for flight in tuple(self.flights):
            flight.finish()

    def drop(self) -> None:
        """Has the poller's thread destroy the producer: its destructor may wait for brokers."""
        self._producer = None
        self._look_no_more()
        self._poller.stop()

    def is_gone(self) -> bool:
        """Whether that is done."""
        return self._poller.is_gone()

    def _served(self) -> None:
        """Called on the poller's thread, again and again while it hurries a call: others may become due meanwhile."""
        if any(flight.answered for flight in tuple(self.flights)):
            on_loop(self._loop, self._finish_answered)

    def _finish_answered(self) -> None:
        late = self._may_be_late()
        ended = self._loop.time() - _LATE
        for flight in tuple(self.flights):
            if flight.answered and (not late or flight.began <= ended):
                flight.finish()
