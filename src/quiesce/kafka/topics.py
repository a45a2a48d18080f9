"""What is known of the topics: whether events can go there now."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError

from quiesce.kafka.blocking import in_thread
from quiesce.kafka.outgoing import Lot
from quiesce.kafka.partitions import partition_of
from quiesce.kafka.settings import Settings
from quiesce.kafka.size_limits import SizeLimits
from quiesce.kafka.topic_answers import Answer, NoBrokerAnswered, ask
from quiesce.kafka.topic_state import TopicState
from quiesce.kafka.verdict import LOOK_AGAIN_AFTER, judge, named, no_leader
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.fields import may_be_a_topic
from quiesce.outbox.outcome import Dead, Outcome, Retry

_LOG = logging.getLogger("quiesce.kafka")

_ASK = 2.0
"""Seconds for one question; it is repeated."""
_LONGEST_PAUSE = 30.0
"""Seconds between two tries of a topic whose broker refuses us and does not tell our rights."""
_LONGEST_WAIT = 5.0
"""Seconds until an event whose partition has no leader is offered again, at most."""
_TRUSTED = 300.0
"""Seconds for which an answer counts: partitions may be added. librdkafka looks for them as often."""


class Topics:
    """What is known of the topics, asked of the brokers once for each while all is well.

    Why before sending: librdkafka finds out behind our back, one message at a time. Of three events of one
    key the first would be refused and the others accepted; the broker refuses a batch as a whole, so small
    events would be condemned for the company they kept; and for a partition without a leader no answer comes
    at all, so that everything else would wait for it.
    """

    def __init__(self, settings: Settings, *, compressed: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._known: dict[str, TopicState] = {}
        self.limits = SizeLimits(self._known, compressed=compressed)
        self._distrusted: set[str] = set()
        self._asking: set[str] = set()

    async def know(self, topics: Collection[str], over: "asyncio.Future[None]") -> None:
        """Asks about topics that are not known, and waits for it until `over` is done: without a broker nothing
        can be sent anyway. What is known to be wrong is asked about again, and not waited for."""
        now = self._clock()
        sane = [topic for topic in topics if may_be_a_topic(topic)]
        unknown = {topic for topic in sane if topic not in self._known or self._known[topic].doubtful}
        if due := {topic for topic in sane if topic not in unknown and self._known[topic].ask_at <= now}:
            self._refresh(due - self._asking)
        while unknown and not over.done():
            asked = self._ask(unknown)
            try:
                either: set[asyncio.Future[Any]] = {asked, over}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not asked.done():
                    return
                self._learn(asked.result())
            except NoBrokerAnswered:
                continue
            finally:
                asked.cancel()
            return

    async def look_at(self, topics: Collection[str], over: "asyncio.Future[None]") -> None:
        """Asks about topics whatever is known of them; says nothing if no broker answers."""
        asked = self._ask(topics)
        either: set[asyncio.Future[Any]] = {asked, over}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            self._take(asked)
        else:
            asked.cancel()

    async def refusals(self, lot: Lot, over: "asyncio.Future[None]") -> list[tuple[ClaimedEvent, Outcome]]:
        """The events that cannot be sent now, or never, each with its outcome. It may have to ask first."""
        topics = lot.topics
        new = {topic for topic in topics if topic not in self._known or self._known[topic].doubtful}
        await self.know(topics, over)
        doubtful = {event.topic for event in self.limits.exceeding(lot)} - new
        if doubtful:
            # A limit may have been raised since: a dead letter is not made on an old answer.
            await self.look_at(doubtful, over)
        if not new and not doubtful and all(self._is_well(topic) for topic in topics):
            return []
        told = ((event, self._refusal(event)) for event in lot.events)
        return [(event, outcome) for event, outcome in told if outcome is not None]

    def well(self, lot: Lot) -> bool:
        """Whether the events can be sent without a question or a refusal."""
        now = self._clock()
        return all(
            self._is_well(topic) and not self._known[topic].doubtful and now < self._known[topic].ask_at
            for topic in lot.topics
        ) and not self.limits.exceeding(lot)

    def _is_well(self, topic: str) -> bool:
        known = self._known.get(topic)
        return known is not None and known.wrong is None and not known.answer.leaderless

    def _refusal(self, event: ClaimedEvent) -> Outcome | None:
        topic = self._known.get(event.topic)
        if topic is None:
            if may_be_a_topic(event.topic):
                return None
            return Dead(f"TOPIC_EXCEPTION: {event.topic!r} cannot be the name of a topic")
        if topic.wrong is not None:
            return topic.wrong
        if topic.answer.leaderless:
            number = partition_of(event.aggregate_id, topic.answer.partitions)
            if number in topic.answer.leaderless:
                # The longer it lasts, the less often its events are offered; an outage counts no attempt.
                wait = min(_LONGEST_WAIT, max(LOOK_AGAIN_AFTER, (self._clock() - topic.since) / 2))
                return no_leader(event.topic, number, wait)
        return self.limits.refusal(event)

    def partitions(self, topic: str) -> int:
        """How many partitions it has; 0 if that is not known."""
        known = self._known.get(topic)
        return known.answer.partitions if known is not None else 0

    def leaderless(self, topics: Iterable[str]) -> set[tuple[str, int]]:
        """Topic and number of the partitions that have no leader."""
        known = ((topic, self._known[topic].answer) for topic in topics if topic in self._known)
        return {(topic, number) for topic, answer in known for number in answer.leaderless}

    def gone(self, topics: Iterable[str]) -> Mapping[str, Retry]:
        """Those that are missing, or not open to us, each with the outcome of its events."""
        known = ((topic, self._known[topic].wrong) for topic in topics if topic in self._known)
        return {topic: wrong for topic, wrong in known if isinstance(wrong, Retry)}

    def forget(self, topics: Iterable[str]) -> None:
        """They are asked about again before anything is sent to them, unless something is wrong with them."""
        for topic in topics:
            if topic in self._known and self._known[topic].wrong is None:
                self._known[topic].doubtful = True

    def shut(self, outcomes: Mapping[str, Outcome]) -> None:
        """Events were refused for their topics' sake, with these outcomes."""
        for topic, outcome in outcomes.items():
            if isinstance(outcome, Retry) and outcome.reason.startswith("TOPIC_AUTHORIZATION_FAILED"):
                self._refused(topic, outcome)
            else:
                self.forget({topic})

    def _refused(self, topic: str, outcome: Outcome) -> None:
        """The broker refused an event for the topic's sake: another is no more welcome.

        Each refusal costs a producer, so nothing is sent before the broker says that we may write. One that
        does not tell is tried again after a pause that doubles.
        """
        known = self._known.setdefault(topic, TopicState())
        known.refused += 1
        pause = min(_LONGEST_PAUSE, LOOK_AGAIN_AFTER * 2.0 ** (known.refused - 1))
        known.go_wrong(topic, outcome, self._clock())
        known.ask_at = self._clock() + pause

    def distrust(self, topic: str) -> bool:
        """A batch was refused that the limit would have let through: it is asked for again.

        True if that cannot help: it could not be read, or was wrong before.
        """
        known = self._known.pop(topic, None)
        hopeless = known is None or known.answer.limit is None or topic in self._distrusted
        self._distrusted.add(topic)
        return hopeless

    def _ask(self, topics: Collection[str]) -> "asyncio.Future[Mapping[str, Answer | KafkaError]]":
        rights = any(topic in self._known and self._known[topic].refused for topic in topics)
        wanted = tuple(topics)
        return in_thread("quiesce-kafka-topics", lambda: ask(self._settings, wanted, _ASK, rights=rights))

    def _refresh(self, topics: Collection[str]) -> None:
        if not topics:
            return
        self._asking.update(topics)
        for topic in topics:
            self._known[topic].ask_at = self._clock() + LOOK_AGAIN_AFTER

        def take(asked: "asyncio.Future[Mapping[str, Answer | KafkaError]]") -> None:
            self._asking.difference_update(topics)
            self._take(asked)

        self._ask(topics).add_done_callback(take)

    def _take(self, asked: "asyncio.Future[Mapping[str, Answer | KafkaError]]") -> None:
        if asked.cancelled():
            return
        error = asked.exception()
        if error is None:
            self._learn(asked.result())
        elif not isinstance(error, NoBrokerAnswered):
            _LOG.error("asking about topics failed", exc_info=error)

    def _learn(self, answers: Mapping[str, Answer | KafkaError]) -> None:
        now = self._clock()
        for topic, answer in answers.items():
            known = self._known.setdefault(topic, TopicState())
            known.doubtful = False
            if isinstance(answer, KafkaError):
                known.go_wrong(topic, judge(answer) or Retry(named(answer)), now)
                known.ask_at = now + LOOK_AGAIN_AFTER
                continue
            known.learn(topic, answer)
            if known.refused and known.wrong is not None and answer.may_write is False:
                known.ask_at = now + LOOK_AGAIN_AFTER
                continue
            known.wrong = None
            if answer.leaderless:
                known.ask_at = now + LOOK_AGAIN_AFTER
                numbers = ", ".join(map(str, sorted(answer.leaderless)))
                known.tell(topic, f"LEADER_NOT_AVAILABLE: no leader for partition {numbers}", now)
            else:
                known.ask_at = now + _TRUSTED
                if not known.told:
                    known.refused = 0
                known.tell(topic, "", now)
