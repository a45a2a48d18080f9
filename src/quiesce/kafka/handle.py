"""One librdkafka producer and the thread that serves its delivery reports.

A handle is given up as a whole: after `purge` and `drop` nothing of it can reach a broker any more.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from quiesce.kafka.blocking import in_thread, on_loop, until
from quiesce.kafka.flight import Flight
from quiesce.kafka.settings import Settings, refused_settings
from quiesce.kafka.verdict import TOO_LARGE, about_topic, judge, named
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Dead, Outcome

_LOG = logging.getLogger("quiesce.kafka")

_POLL = 0.05
"""Seconds; delivery reports end a poll at once, so this only bounds how long a dropped handle lingers."""

_LOOK_AGAIN = 1.0

_GATHER = 0.001
"""Seconds in which reports gather after some were served: each poll has to fight the loop for the interpreter."""

Headers = list[tuple[str, str | bytes | None]]


class Handle:
    """A producer from its making to its end. Made and used on the loop's thread.

    `ended` is set when it was given up: nothing is handed to it any more. `broken` says why it lost track
    of what was acked; it is given up as well, but by whoever called `publish`.
    """

    def __init__(self, settings: Settings, *, batch_size: int, alone: bool) -> None:
        """`batch_size` in bytes; `alone` makes each message a batch of its own."""
        self._loop = asyncio.get_running_loop()
        self.batch_size = batch_size
        self.alone = alone
        self.shut: set[str] = set()
        """Topics that turned out not to exist, or not to be open to us. They may be by now."""
        self.refused_batches: set[str] = set()
        """Topics that refused a batch as too large, where it could not be told which message was."""
        self.flights: set[Flight] = set()
        self.broken: str | None = None
        self.ended = False
        self.over: asyncio.Future[None] = self._loop.create_future()
        """Done once the handle is ended or broken."""
        self.given_up = 0
        self.last_error: str | None = None
        config = settings | {"batch.size": batch_size, "error_cb": self._on_error}
        if alone:
            config["batch.num.messages"] = 1
        try:
            producer: Producer = Producer(config)
        except (KafkaException, TypeError, ValueError) as error:
            raise refused_settings("producer", error) from error
        self._producer: Producer | None = producer
        # In a list, so that the thread can take it out: what stands in a thread's arguments lives on
        # until the thread has ended.
        held = [producer]
        self._gone = threading.Event()
        self._stop = threading.Event()
        threading.Thread(
            target=_serve,
            args=(held, self._stop, self._gone, self._on_error),
            name="quiesce-kafka-producer",
            daemon=True,
        ).start()

    @property
    def usable(self) -> bool:
        return not self.ended and self.broken is None

    def probe(self, timeout: float) -> Callable[[], bool]:
        """A blocking call, for a thread: whether a broker answers within `timeout` seconds."""
        producer = self._producer

        def ask() -> bool:
            if producer is None:
                return False
            try:
                producer.list_topics(timeout=max(timeout, 0.001))
            except KafkaException:
                return False
            return True

        return ask

    def look_again(self, topics: Collection[str]) -> Callable[[], None]:
        """A blocking call, for a thread: has librdkafka ask about these topics.

        By itself it remembers for minutes that a topic was missing or forbidden.
        """
        producer = self._producer

        def ask() -> None:
            with contextlib.suppress(KafkaException):
                for topic in topics:
                    if producer is not None:
                        producer.list_topics(topic, timeout=_LOOK_AGAIN)

        return ask

    def offer(self, flight: Flight, event: ClaimedEvent) -> bool:
        """Hands one event over; False if librdkafka's queue is full. A refusal goes to the flight.

        On a handle that is over nothing is handed over, and there is nothing to wait for: True.
        """
        if not self.usable:
            return True
        assert self._producer is not None
        headers: Headers = [("id", str(event.id)), ("type", event.type)]
        if event.headers:
            headers += [(name, value) for name, value in event.headers.items() if name not in ("id", "type")]
        try:
            self._producer.produce(
                event.topic,
                event.payload,
                event.aggregate_id,
                headers=headers,
                on_delivery=partial(flight.answer, event.id),
            )
        except BufferError:
            return False
        except KafkaException as error:
            self._refuse(flight, event, error.args[0])
        except (TypeError, ValueError) as error:
            flight.refuse(event.id, Dead(f"cannot be given to Kafka: {error}"))
        return True

    def _refuse(self, flight: Flight, event: ClaimedEvent, error: KafkaError) -> None:
        outcome = judge(error)
        if about_topic(error):
            self.shut.add(event.topic)
        if outcome is None and error.code() == KafkaError._INVALID_ARG:
            # librdkafka's word on this event alone: a topic's name that cannot be one.
            outcome = Dead(named(error))
        if outcome is None:
            self.fail(named(error))
        else:
            flight.refuse(event.id, outcome)

    def judge(self, error: KafkaError, message: Message) -> Outcome | None:
        """The verdict of one delivery report. Called on the poller's thread."""
        topic = message.topic() or ""
        if error.code() in TOO_LARGE and not self._was_alone(message):
            self.refused_batches.add(topic)
            self.given_up += 1
            on_loop(self._loop, self.fail, f"a batch for topic {topic!r} is over the topic's size limit")
            return None
        outcome = judge(error)
        if outcome is None:
            self.given_up += 1
            if error.code() not in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
                on_loop(self._loop, self.fail, named(error))
        elif about_topic(error):
            self.shut.add(topic)
        return outcome

    def _was_alone(self, message: Message) -> bool:
        """Whether a batch that the broker found too large can only have had this message in it.

        librdkafka lets a message larger than the batch size travel, and always alone.
        """
        return self.alone or len(message.key() or b"") + len(message.value() or b"") > self.batch_size

    def fail(self, reason: str) -> None:
        """Nothing more can be learned from this producer: every call under way ends with what it has."""
        if self.usable:
            _LOG.warning("Kafka producer is broken and will be replaced: %s", reason)
            self.broken = reason
        self._finish_flights()

    def _finish_flights(self) -> None:
        if not self.over.done():
            self.over.set_result(None)
        for flight in tuple(self.flights):
            flight.finish()

    def _on_error(self, error: KafkaError) -> None:
        self.last_error = named(error)
        if error.fatal():
            on_loop(self._loop, self.fail, named(error))

    def queued(self) -> int:
        """Messages handed over and not answered."""
        return 0 if self._producer is None else len(self._producer)

    async def settle(self, deadline: float) -> int:
        """Waits until every message is answered, or `deadline` (seconds of the monotonic clock)."""
        await until(lambda: not self.queued(), deadline)
        return self.queued()

    async def flush(self, deadline: float) -> int:
        """Sends what still waits for a fuller batch, and waits as `settle` does."""
        if self._producer is not None and self.queued():
            # `linger.ms` counts for nothing while this call lasts. It ends by itself when nothing is queued.
            flush = partial(self._producer.flush, max(0.0, deadline - time.monotonic()))
            in_thread("quiesce-kafka-flush", flush)
        return await self.settle(deadline)

    async def give_up(self, deadline: float) -> int:
        """Purges, ends every call under way, and destroys the producer, all by `deadline`.

        Returns how many messages had no answer.
        """
        self.ended = True
        if self._producer is not None:
            # An error here means a producer that never sent anything.
            with contextlib.suppress(KafkaException):
                self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        left = await self.settle(deadline)
        # One turn of the loop: what the poller has reported is seen by the calls before they end.
        await asyncio.sleep(0)
        self._finish_flights()
        await self.drop(deadline)
        return self.given_up + left

    async def drop(self, deadline: float) -> None:
        """Lets the poller's thread destroy the producer: its destructor may wait for brokers."""
        self.ended = True
        self._producer = None
        self._stop.set()
        await until(self._gone.is_set, deadline)


def _serve(
    held: list[Producer],
    stop: threading.Event,
    gone: threading.Event,
    on_error: Callable[[KafkaError], None],
) -> None:
    producer = held.pop()
    while not stop.is_set():
        try:
            if producer.poll(_POLL):
                time.sleep(_GATHER)
        except KafkaException as error:
            # A fatal error comes this way and not by error_cb. Reports of what is purged are still to come.
            on_error(error.args[0])
    # The last reference, so the destructor runs here.
    del producer
    gone.set()
