"""One librdkafka producer: what is handed to it, and its end.

A handle is given up as a whole: after `purge` and `drop` nothing of it can reach a broker any more.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Producer

from quiesce.kafka import questions
from quiesce.kafka.answering import Answering
from quiesce.kafka.blocking import on_loop, until
from quiesce.kafka.flight import Flight, Report
from quiesce.kafka.outgoing import NOT_FOR_KAFKA, Headers, headers_of
from quiesce.kafka.pioneers import Pioneers
from quiesce.kafka.refusals import Refusals
from quiesce.kafka.settings import Settings, refused_settings
from quiesce.kafka.size_limits import Batching
from quiesce.kafka.verdict import named
from quiesce.outbox.event import ClaimedEvent, Outgoing
from quiesce.outbox.outcome import Dead

_LOG = logging.getLogger("quiesce.kafka")

_ANY_PARTITION = -1
"""librdkafka chooses it by the key."""

_LATE_ANSWERS = 1.0
"""Seconds, at most, in which a producer that sends nothing more still hears of what it has sent."""

_HEARD = 0.5
"""Seconds after which a producer is given up at the latest that takes nothing more."""


class Handle:
    """A producer from its making to its end. Made and used on the loop's thread.

    `ended` is set when it was given up: nothing is handed to it any more. `broken` says why it lost track
    of what was acked; it is given up as well, but by whoever called `publish`.
    """

    def __init__(self, settings: Settings, batching: Batching, *, late: bool = False) -> None:
        """`late`: see `Answering`."""
        self._loop = asyncio.get_running_loop()
        self.batching = batching
        self.refusals = Refusals(batching, self.fail)
        self.draining = False
        """Nothing more is handed over: the producer will be replaced once all is answered that can be."""
        self.pioneers = Pioneers()
        self.scouts: list[tuple[Flight, ClaimedEvent]] = []
        """Pioneers that are under way."""
        self.broken: str | None = None
        self.takes_nothing: str | None = None
        """Why, where librdkafka has said that it takes nothing more."""
        self.ended = False
        self.over: asyncio.Future[None] = self._loop.create_future()
        """Done once the handle is ended or broken."""
        self.last_error: str | None = None
        """Why a connection failed, for people."""
        self.failing: asyncio.Future[None] = self._loop.create_future()
        """Done once a connection has failed. librdkafka goes on trying."""
        try:
            producer: Producer = Producer(settings | batching.settings() | {"error_cb": self._on_error})
        except (KafkaException, TypeError, ValueError) as error:
            raise refused_settings("producer", error) from error
        self._producer: Producer | None = producer
        self.answering = Answering(producer, self._on_error, lambda: self.usable, late)

    @property
    def usable(self) -> bool:
        return not self.ended and self.broken is None

    def probe(self, timeout: float) -> Callable[[], bool]:
        """A blocking call, for a thread: whether a broker answers within `timeout` seconds."""
        return partial(questions.probe, self._producer, timeout)

    def look_again(self, topics: Collection[str]) -> Callable[[], None]:
        """A blocking call, for a thread: has librdkafka ask about these topics."""
        return partial(questions.look_again, self._producer, tuple(topics))

    def offer(self, flight: Flight, event: ClaimedEvent, report: Report) -> bool:
        """Hands one event over; False if librdkafka takes nothing now. A refusal goes to the flight.

        On a handle that is over nothing is handed over, and there is nothing to wait for: True.
        """
        return self.offer_all(flight, (event,), (event.outgoing,), (report,)) == 1

    def offer_all(
        self,
        flight: Flight,
        events: Sequence[ClaimedEvent],
        outgoing: Sequence[Outgoing],
        reports: Sequence[Report],
    ) -> int:
        """Hands events over, in order, up to the first that librdkafka does not take now.

        `outgoing` is what goes out of each, `reports` are called with their delivery reports. Returns how many events
        need not be offered again: taken, refused for good, or the handle is over.
        """
        if not self.usable:
            return len(events)
        assert self._producer is not None
        # What is done inside the loop is done a hundred thousand times a second: arguments by name alone cost a
        # fifth of the call, and headers of its own as much. librdkafka copies them before it returns.
        produce = self._producer.produce
        ours: Headers = {"id": None, "type": None}
        for number, (id_text, key, topic, kind, payload, own) in enumerate(outgoing):
            try:
                headers = ours
                if own:
                    headers = headers_of(events[number])
                else:
                    ours["id"], ours["type"] = id_text, kind
                produce(topic, payload, key, _ANY_PARTITION, reports[number], None, 0, headers)
            except BufferError:
                return number
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:
                    # The poller hears of it as well, and of what it is about. Until then nothing is handed over.
                    self.takes_nothing = named(error.args[0])
                    self._loop.call_later(_HEARD, self.fail, self.takes_nothing)
                    return number
                if not self.refusals.at_hand_over(flight, events[number], error.args[0]):
                    return len(events)
            except NOT_FOR_KAFKA as error:
                flight.refuse(events[number].id, Dead(f"cannot be given to Kafka: {error}"))
        self.answering.handed_over()
        return len(events)

    def scouts_are_back(self) -> bool:
        """Whether every pioneer is answered; also once there will be no answers."""
        return not self.usable or all(event.id in flight.outcomes for flight, event in self.scouts)

    def fail(self, reason: str) -> None:
        """Nothing more can be learned from this producer: every call under way ends with what it has."""
        if self.usable:
            _LOG.warning("the Kafka producer will be replaced: %s", reason)
            self.broken = reason
            self.answering.serve_by_thread()
        self._finish_flights()

    def _finish_flights(self) -> None:
        if not self.over.done():
            self.over.set_result(None)
        self.answering.finish_all()

    def _on_error(self, error: KafkaError) -> None:
        """Called on the poller's thread."""
        if error.code() == KafkaError._GAPLESS_GUARANTEE:
            on_loop(self._loop, self.fail, f"an event was refused and nothing may go before its retry: {error.str()}")
            return
        if error.fatal():
            on_loop(self._loop, self.fail, named(error))
            return
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.last_error is None:
            self.last_error = named(error)
        on_loop(self._loop, self._connection_failed)

    def _connection_failed(self) -> None:
        if not self.failing.done():
            self.failing.set_result(None)

    def queued(self) -> int:
        """Messages handed over and not answered."""
        return self.answering.queued()

    async def settle(self, deadline: float) -> int:
        """Waits until every message is answered, or `deadline` (seconds of the monotonic clock)."""
        await until(lambda: not self.queued(), deadline)
        return self.queued()

    async def flush(self, deadline: float) -> int:
        """Sends what still waits for a fuller batch, and waits as `settle` does."""
        self.answering.hurry()
        return await self.settle(deadline)

    async def give_up(self, deadline: float) -> int:
        """Purges, ends every call under way, and destroys the producer, all by `deadline`.

        Returns how many messages had no answer.
        """
        self.ended = True
        self.answering.serve_by_thread()
        queued, before = self.queued(), self.refusals.unknown
        if self.broken is not None:
            # The brokers answer, so that nothing need be doubled: only what was not sent is taken back.
            now = time.monotonic()
            late = now + min(_LATE_ANSWERS, max(0.0, deadline - now) * 0.4)
            while self.queued() and time.monotonic() < late:
                # Again and again: what the broker refuses for the gap before it goes back into the queue.
                self._purge(in_flight=False)
                await self.settle(min(late, time.monotonic() + 0.02))
        self._purge(in_flight=True)
        left = await self.settle(deadline)
        # One turn of the loop: what the poller has reported is seen by the calls before they end.
        await asyncio.sleep(0)
        self._finish_flights()
        await self.drop(deadline)
        # One that was judged just after it was counted as left is not counted twice.
        unknown = self.refusals.unknown
        return unknown + max(0, min(left, queued - (unknown - before)))

    def _purge(self, *, in_flight: bool) -> None:
        if self._producer is not None:
            # An error here means a producer that never sent anything.
            with contextlib.suppress(KafkaException):
                self._producer.purge(in_queue=True, in_flight=in_flight, blocking=False)

    async def drop(self, deadline: float) -> None:
        """Lets the poller's thread destroy the producer: its destructor may wait for brokers."""
        self.ended = True
        self._producer = None
        self.answering.drop()
        await until(self.answering.is_gone, deadline)
