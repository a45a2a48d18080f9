"""The publisher: events out to Kafka, in order, acked or accounted for."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from uuid import UUID

from quiesce.errors import IntakeClosed, Unavailable
from quiesce.kafka.blocking import in_thread, until
from quiesce.kafka.flight import Flight
from quiesce.kafka.handle import Handle
from quiesce.kafka.settings import (
    DEFAULT_BATCH_SIZE,
    admin_settings,
    given_settings,
    producer_settings,
    whole_number,
)
from quiesce.kafka.topics import Topics
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Outcome

_LOG = logging.getLogger("quiesce.kafka")

_PROBE = 5.0
"""Seconds that `open` waits for a broker."""
_CHUNK = 100
"""Events handed over without a turn of the loop: one to two milliseconds."""
_LAST = 0.5
"""Seconds to purge and destroy a producer: it takes hundredths."""
_LEAST = 0.05


class KafkaPublisher:
    """A `Publisher` on librdkafka: `acks=all`, idempotent, no time limit of its own for a message.

    `bootstrap_or_config` is an address, or a mapping of librdkafka settings (TLS, SASL, tuning);
    `settings` are laid over it. A setting that would break order or acks is refused with
    `SettingsError`.

    A producer that breaks (a fatal error, or an answer that leaves the fate of an event unknown) ends
    every `publish` under way with the outcomes it has, and further calls return nothing, until `discard`
    has put a new producer in its place: what comes after a gap must not overtake it.
    """

    def __init__(
        self,
        bootstrap_or_config: str | Mapping[str, object],
        *,
        name: str = "kafka-producer",
        part: Part = Part.PRODUCERS,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        given = given_settings(bootstrap_or_config, settings or {})
        self._settings = producer_settings(given)
        compression = {str(given.get(key, "none")) for key in ("compression.type", "compression.codec")}
        self._topics = Topics(admin_settings(given), compressed=compression != {"none"})
        self._address = given.get("bootstrap.servers", given.get("metadata.broker.list"))
        self._batch_size = whole_number(given, "batch.size", DEFAULT_BATCH_SIZE)
        self._alone = False
        self._handle: Handle | None = None
        self._generation = 0
        """How often everything was given up: a call belongs to the producer it was made to."""
        self._in_turn = asyncio.Lock()
        self.name = name
        self.part = part

    async def open(self) -> "KafkaPublisher":
        """Makes the producer and waits for a broker to answer, five seconds at most.

        Raises:
            Unavailable: no broker answered. Nothing is left behind; it may be called again.
            SettingsError: librdkafka refused a setting.
        """
        if self._handle is not None:
            return self
        handle = self._make(self._batch_size)
        try:
            answered = await in_thread("quiesce-kafka-probe", handle.probe(_PROBE))
        except BaseException:
            await handle.give_up(time.monotonic())
            raise
        if not answered:
            why = f": {handle.last_error}" if handle.last_error else ""
            await handle.give_up(time.monotonic())
            raise Unavailable(f"no Kafka broker answered within {_PROBE:g} s at {self._address}{why}")
        self._handle = handle
        return self

    def _make(self, batch_size: int) -> Handle:
        return Handle(self._settings, batch_size=batch_size, alone=self._alone)

    async def publish(self, events: Sequence[ClaimedEvent]) -> Mapping[UUID, Outcome]:
        """Hands the events over, in order, and returns when the broker has answered for every one.

        Calls are handed over in the order in which they were made. An event of a topic that does not
        exist is a `Retry` and is not handed over. One that is too large is `Dead`; where the topic's limit
        can be read it is found out before anything of the call is sent. A full local queue is waited for.

        Raises:
            IntakeClosed: the publisher is not open.
        """
        if self._handle is None:
            raise IntakeClosed(f"{self.name} is not open: nothing can be published")
        generation = self._generation
        async with self._in_turn:
            handle = self._still(generation)
            if handle is None:
                return {}
            await self._look_again(handle, {event.topic for event in events} & handle.shut)
            refusals = await self._topics.refusals(events, handle.over)
            batch_size = self._topics.batch_size(events)
            if batch_size is not None and batch_size < handle.batch_size:
                handle = await self._with_smaller_batches(handle, batch_size)
            flight = Flight(handle.judge)
            handle.flights.add(flight)
            try:
                await self._hand_over(handle, flight, events, refusals)
            except BaseException:
                handle.flights.discard(flight)
                raise
        try:
            await flight.wait()
        finally:
            handle.flights.discard(flight)
        return flight.outcomes

    def _still(self, generation: int) -> Handle | None:
        """The handle for a call made in this generation; None if it has been given up meanwhile.

        What was called before a discard is not sent after it: it would overtake what was given up.
        """
        handle = self._handle
        return handle if handle is not None and handle.usable and generation == self._generation else None

    async def _hand_over(
        self,
        handle: Handle,
        flight: Flight,
        events: Sequence[ClaimedEvent],
        refusals: Sequence[tuple[ClaimedEvent, Outcome]],
    ) -> None:
        for event, outcome in refusals:
            flight.refuse(event.id, outcome)
        skipped = {event.id for event, _ in refusals}
        for number, event in enumerate(events, 1):
            if event.id in skipped:
                continue
            if not handle.offer(flight, event):
                # The local queue is full: wait at this event, so that the order stays.
                await until(partial(handle.offer, flight, event), inf)
            if not handle.usable:
                flight.finish()
                return
            if number % _CHUNK == 0:
                await asyncio.sleep(0)
        flight.handed_over(len(events))

    async def _look_again(self, handle: Handle, topics: set[str]) -> None:
        if not topics:
            return
        handle.shut -= topics
        self._topics.forget(topics)
        asked = in_thread("quiesce-kafka-topics", handle.look_again(topics))
        await asyncio.wait({asked, handle.over}, return_when=asyncio.FIRST_COMPLETED)

    async def _with_smaller_batches(self, handle: Handle, batch_size: int) -> Handle:
        """The broker refuses a batch as a whole: it must not be larger than the topic with the lowest limit
        takes. All that is in flight is acked before the other producer takes over, so order holds."""
        await until(lambda: not (handle.usable and handle.queued()), inf)
        if not handle.usable:
            return handle
        _LOG.info("Kafka batches are at most %d bytes from now on, as a topic's limit asks", batch_size)
        self._batch_size = batch_size
        smaller = self._make(batch_size)
        self._handle = smaller
        await handle.give_up(time.monotonic())
        return smaller

    async def discard(self, deadline: Deadline) -> int:
        """Gives up as a whole: purges queue and flight, drops the producer, makes a new one.

        Returns how many messages were given up. Every `publish` under way returns what it has. While
        brokers are away this takes some hundredths of a second.
        """
        handle = self._handle
        if handle is None:
            return 0
        self._generation += 1
        given_up = await handle.give_up(deadline.at)
        hopeless = [topic for topic in handle.refused_batches if self._topics.distrust(topic)]
        if hopeless:
            _LOG.warning(
                "topics %s refuse batches as too large and do not say what they take: each message is sent "
                "alone from now on. Lower batch.size to avoid it",
                ", ".join(hopeless),
            )
            self._alone = True
        # A close may have come meanwhile.
        if self._handle is handle:
            self._handle = self._make(self._batch_size)
        return given_up

    async def reachable(self, deadline: Deadline) -> bool:
        """Whether a broker answers before the deadline. It asks anew each time."""
        handle = self._handle
        remaining = deadline.remaining(time.monotonic())
        if handle is None or not remaining:
            return False
        asked = in_thread("quiesce-kafka-probe", handle.probe(min(remaining, _PROBE)))
        done, _ = await asyncio.wait({asked}, timeout=remaining)
        return bool(done) and asked.result()

    async def close(self, deadline: Deadline) -> Closed:
        """Flushes until the deadline, then purges; `undelivered` counts what was given up."""
        handle, self._handle = self._handle, None
        if handle is None:
            return Closed()
        self._generation += 1
        if handle.usable:
            # Purging and destroying have their share of the time.
            await handle.flush(deadline.at - min(_LAST, deadline.remaining(time.monotonic()) / 10))
        now = time.monotonic()
        undelivered = await handle.give_up(min(now + _LAST, max(now + _LEAST, deadline.at)))
        if undelivered:
            return Closed(forced=True, undelivered=undelivered, detail=f"{undelivered} messages had no ack")
        return Closed()
