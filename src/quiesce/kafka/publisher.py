"""The publisher: events out to Kafka, in order, acked or accounted for."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from uuid import UUID

from quiesce.errors import IntakeClosed
from quiesce.kafka.blocking import until
from quiesce.kafka.bootstrap import Bootstrap, answers
from quiesce.kafka.flight import Flight
from quiesce.kafka.hand_over import cannot_go, hand_over, make_longer, may_be_longer
from quiesce.kafka.handle import Handle
from quiesce.kafka.outgoing import Lot
from quiesce.kafka.settings import (
    DEFAULT_BATCH_SIZE,
    admin_settings,
    given_settings,
    producer_settings,
    whole_number,
)
from quiesce.kafka.silence import PATIENCE, Silence
from quiesce.kafka.size_limits import Batching
from quiesce.kafka.topics import Topics
from quiesce.kafka.waiting_keys import Call, WaitingKeys
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Outcome

_LOG = logging.getLogger("quiesce.kafka")

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
        self._silence = Silence(self._topics)
        self._bootstrap = Bootstrap(given.get("bootstrap.servers", given.get("metadata.broker.list")))
        self._batching = Batching(whole_number(given, "batch.size", DEFAULT_BATCH_SIZE))
        self._handle: Handle | None = None
        self._generation = 0
        """How often everything was given up: a call belongs to the producer it was made to."""
        self._in_turn = asyncio.Lock()
        self._waiting = WaitingKeys()
        self._late = False
        self._last: Flight | None = None
        """The call that was handed over last, while it waits for its answers."""
        self.name = name
        self.part = part

    def may_answer_late(self, late: bool) -> None:
        """Whether a call of a few events may end up to 0.03 s after its last answer, and so with others. The relay says
        so, as long as it waits for none."""
        self._late = late
        if self._handle is not None:
            self._handle.answering.may_answer_late(late)

    def wait_behind_dead(self, holds_key: Callable[[str], bool]) -> None:
        """Events behind a dead letter of their key wait, on topics for which `holds_key`. The relay says so."""
        self._waiting.dead_holds_key = holds_key

    async def open(self) -> "KafkaPublisher":
        """Makes the producer and waits for a broker to answer: two seconds the first time, five at most later,
        and less than a third of that once a connection has failed.

        Raises:
            Unavailable: no broker answered. Nothing is left behind; it may be called again.
            SettingsError: librdkafka refused a setting.
        """
        if self._handle is not None:
            return self
        handle = self._make()
        await self._bootstrap.wait(handle)
        self._handle = handle
        return self

    def _make(self) -> Handle:
        return Handle(self._settings, self._batching, late=self._late)

    async def publish(self, events: Sequence[ClaimedEvent]) -> Mapping[UUID, Outcome]:
        """Hands the events over, in order, and returns when the broker has answered for every one.

        Calls are handed over in the order in which they were made. An event of a topic that does not
        exist is a `Retry` and is not handed over. One that is too large is `Dead`; where the topic's limit
        can be read it is found out before anything of the call is sent. What comes behind a `Retry` of its key
        is a `Retry` as well, which counts no attempt. A full local queue is waited for.

        Raises:
            IntakeClosed: the publisher is not open.
        """
        if self._handle is None:
            raise IntakeClosed(f"{self.name} is not open: nothing can be published")
        generation = self._generation
        call: Call | None = None
        self._waiting.called()
        try:
            async with self._in_turn:
                handle = self._still(generation)
                if handle is None or not await self._silence.drained(handle):
                    return {}
                lot = Lot(events)
                call, refusals = self._waiting.judged(events, await cannot_go(handle, lot, self._topics))
                batching = handle.batching.within(self._topics.limits.batch_size(lot.topics))
                if batching is not handle.batching:
                    handle = await self._with_smaller_batches(handle, batching)
                flight = handle.answering.begin(events, handle.refusals.judge)
                try:
                    await hand_over(handle, flight, lot, refusals, self._topics, self._silence)
                except BaseException:
                    handle.answering.end(flight)
                    raise
                self._last = flight
            try:
                while not await flight.wait(PATIENCE):
                    await self._silence.find_out(handle)
            finally:
                handle.answering.end(flight)
            return flight.outcomes
        finally:
            if call is None:
                self._waiting.dropped()
            else:
                self._waiting.ended(call)

    def takes(self, events: Sequence[ClaimedEvent], more: Sequence[ClaimedEvent]) -> bool:
        """See the port. A few events, as long as it may end late, and nothing is known to be wrong."""
        handle, flight = self._handle, self._last
        if handle is None or flight is None or flight.events is not events or self._in_turn.locked():
            return False
        return self._waiting.none and may_be_longer(handle, flight, more, self._topics)

    def add(self, events: Sequence[ClaimedEvent], known: int) -> None:
        """See the port."""
        handle, flight = self._handle, self._last
        assert handle is not None
        assert flight is not None
        make_longer(handle, flight, known)

    def _still(self, generation: int) -> Handle | None:
        """The handle for a call made in this generation; None if it has been given up meanwhile.

        What was called before a discard is not sent after it: it would overtake what was given up.
        """
        handle = self._handle
        return handle if handle is not None and handle.usable and generation == self._generation else None

    async def _with_smaller_batches(self, handle: Handle, batching: Batching) -> Handle:
        """The broker refuses a batch as a whole: it must not be larger than the topic with the lowest limit
        takes. All that is in flight is acked before the other producer takes over, so order holds."""
        await until(lambda: not (handle.usable and handle.queued()), inf)
        if not handle.usable:
            return handle
        _LOG.info("Kafka batches are at most %d bytes from now on, as a topic's limit asks", batching.size)
        self._batching = batching
        self._handle = smaller = self._make()
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
        flights = tuple(handle.answering.flights)
        given_up = await handle.give_up(deadline.at)
        self._topics.shut(handle.refusals.shut)
        # What was not answered may be so for a topic's sake: it is asked about before more is sent there.
        self._topics.forget({event.topic for flight in flights for event in flight.unanswered})
        hopeless = [topic for topic in handle.refusals.batches if self._topics.distrust(topic)]
        if hopeless:
            _LOG.warning(
                "topics %s refuse batches as too large and do not say what they take: each message is sent "
                "alone from now on. Lower batch.size to avoid it",
                ", ".join(hopeless),
            )
            self._batching = replace(self._batching, alone=True)
        # A close may have come meanwhile.
        if self._handle is handle:
            self._handle = self._make()
        return given_up

    async def reachable(self, deadline: Deadline) -> bool:
        """Whether a broker answers before the deadline. It asks anew each time."""
        handle = self._handle
        return handle is not None and await answers(handle, deadline)

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
