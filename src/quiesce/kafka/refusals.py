"""What a producer's refusals mean: for the one event, for its topic, and for the producer itself."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from confluent_kafka import KafkaError, Message

from quiesce.kafka.blocking import on_loop
from quiesce.kafka.flight import Flight
from quiesce.kafka.size_limits import Batching
from quiesce.kafka.verdict import TOO_LARGE, about_topic, judge, named, no_leader
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Dead, Outcome, Retry


class Refusals:
    """Those of one producer. Made on the loop's thread.

    `fail`: ends the producer, with a reason; called on the loop's thread.
    """

    def __init__(self, batching: Batching, fail: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._batching = batching
        self._fail = fail
        self.shut: dict[str, Outcome] = {}
        """Topics that turned out not to exist, or not to be open to us, with the outcome of their events."""
        self.leaderless: set[tuple[str, int]] = set()
        """Partitions, by topic and number, that nothing is heard of."""
        self.gone: Mapping[str, Retry] = {}
        """Topics that nothing is heard of: missing, or not open to us. With the outcome of their events."""
        self.batches: set[str] = set()
        """Topics that refused a batch as too large, where it could not be told which message was."""
        self.unknown = 0
        """Events handed over whose fate stays unknown."""

    def judge(
        self, error: KafkaError, message: Message, event: ClaimedEvent
    ) -> tuple[Outcome | None, Callable[[], None] | None]:
        """The verdict of one delivery report, see `Judge`. Called on the poller's thread."""
        topic = event.topic
        if error.code() in TOO_LARGE and not self._batching.was_alone(event):
            self.batches.add(topic)
            self.unknown += 1
            return None, self._failing(f"a batch for topic {topic!r} is over the topic's size limit")
        purged = error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
        if purged and (unheard := self._unheard(topic, message.partition())) is not None:
            return unheard, None
        outcome = judge(error)
        if outcome is None:
            self.unknown += 1
            return None, None if purged else self._failing(named(error))
        if about_topic(error):
            self.shut[topic] = outcome
            # The topic may be there again for the next event of the key.
            return outcome, self._failing(named(error))
        return outcome, None

    def _unheard(self, topic: str, number: int | None) -> Retry | None:
        """The outcome of an event that nothing was heard of, for want of its topic or of a leader; None for another."""
        if number is not None and (topic, number) in self.leaderless:
            return no_leader(topic, number)
        return self.gone.get(topic)

    def _failing(self, reason: str) -> Callable[[], None]:
        return partial(on_loop, self._loop, self._fail, reason)

    def at_hand_over(self, flight: Flight, event: ClaimedEvent, error: KafkaError) -> bool:
        """librdkafka does not take an event: that one is refused, or the producer fails, or both. Returns whether more
        may be handed over."""
        outcome = judge(error)
        if outcome is None and error.code() == KafkaError._INVALID_ARG:
            # librdkafka's word on this event alone: a topic's name that cannot be one.
            outcome = Dead(named(error))
        if outcome is None:
            self._fail(named(error))
            return False
        if about_topic(error):
            self.shut[event.topic] = outcome
        flight.refuse(event.id, outcome)
        if isinstance(outcome, Retry):
            # librdkafka may think otherwise of the next event of the key.
            self._fail(outcome.reason)
            return False
        return True
