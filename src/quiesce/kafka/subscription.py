"""The topics that the group is asked for, and a look now and then at those that nothing comes of.

librdkafka says little of them by itself. With the classic protocol it tells of a missing topic once, and not of one
that is deleted while it is read; with `group.protocol=consumer` it tells of neither, and a single forbidden topic has
the group refuse all of them, without its name.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.kafka.topic_look import ANSWER_BOUND, TopicLook
from quiesce.kafka.troubles import ABOUT_A_TOPIC, Troubles

_EVERY = 5.0
"""Seconds between two looks at topics that nothing comes of."""
_AGAIN = 1.0
"""Seconds while something is wrong."""
_ASK_GROUP = 0.2
"""Seconds that the group has to answer in: nobody polls meanwhile."""
_SILENT = 2
"""Looks in a row without an answer after which no broker counts as there: one may be slow."""

_GONE = 2
"""Looks in a row that have not found a topic after which it counts as deleted: brokers may not know a new one yet."""


class Subscription:
    """On the consumer's thread only. `troubles` are under `lock`.

    `callbacks`: what `Consumer.subscribe` takes besides the topics. `choosy`: the group refuses everybody who asks for
    a topic that they may not describe, so it is asked for the others alone.
    """

    def __init__(
        self,
        topics: Collection[str],
        troubles: Troubles,
        lock: threading.Condition,
        callbacks: Mapping[str, Callable[..., None]],
        *,
        choosy: bool,
    ) -> None:
        self._topics = frozenset(topics)
        # librdkafka takes patterns too, of which nobody can tell that one is missing.
        self._named = frozenset(topic for topic in topics if not topic.startswith("^"))
        self._troubles = troubles
        self._lock = lock
        self._callbacks = callbacks
        self._choosy = choosy
        self._subscribed: frozenset[str] = frozenset()
        self._forbidden: set[str] = set()
        self._missing: Counter[str] = Counter()
        """In so many looks in a row."""
        self._heard: set[str] = set()
        self._look: TopicLook | None = None
        self._unanswered = 0
        self._next = 0.0

    def begin(self, consumer: Consumer, timeout: float) -> str | None:
        """Looks at all topics and subscribes. Returns the cluster's id, if the brokers tell one.

        Raises:
            KafkaException: no broker answered within `timeout` seconds.
        """
        until = time.monotonic() + timeout
        found = None
        if not self._named:
            found = consumer.list_topics(timeout=timeout)
        for topic in sorted(self._named):
            found = consumer.list_topics(topic, timeout=max(0.01, until - time.monotonic()))
            self._learn(topic, found.topics[topic].error)
        self._subscribed = frozenset()
        self._subscribe(consumer)
        self._put_off()
        return None if found is None else found.cluster_id

    def heard(self, topics: Iterable[str]) -> None:
        """Something came of these, so nobody needs to look at them."""
        self._heard.update(topics)
        if self._troubles.lasting:
            with self._lock:
                self._troubles.flows(self._heard)

    def turn(self, consumer: Consumer) -> bool:
        """Begins a look when it is time for one, or takes in what it has found, and then subscribes anew where rights
        were given or taken. Returns whether anything may have changed."""
        if self._look is None:
            if self._troubles.unnamed or time.monotonic() >= self._next:
                self._troubles.unnamed = False
                silent, self._heard = self._named - self._heard, set()
                self._look = TopicLook(consumer, sorted(silent))
            return False
        if not self._look.over:
            return False
        self._take_in(self._look)
        self._look = None
        self._subscribe(consumer)
        if self._troubles.no_group:
            self._ask_group(consumer)
        self._put_off()
        return True

    def end(self) -> bool:
        """Ends a look that is under way, bounded. Returns whether the client may be closed: none is in its hands."""
        look, self._look = self._look, None
        return look is None or look.end(ANSWER_BOUND + 1.0)

    def _put_off(self) -> None:
        self._next = time.monotonic() + (_AGAIN if self._troubles.lasting or self._unanswered else _EVERY)

    def _take_in(self, look: TopicLook) -> None:
        for topic, error in look.found.items():
            # Unless something came of it meanwhile: the answer is older than that.
            if topic not in self._heard:
                self._learn(topic, error)
        self._unanswered = self._unanswered + 1 if look.unanswered else 0
        if self._unanswered >= _SILENT:
            with self._lock:
                self._troubles.silent()

    def _learn(self, topic: str, error: KafkaError | None) -> None:
        with self._lock:
            self._troubles.answered(time.monotonic())
            if error is not None and error.code() in ABOUT_A_TOPIC:
                self._troubles.goes_wrong(topic, error)
            elif self._troubles.is_there(topic):
                # Asked for anew: with the classic protocol librdkafka would look for it every five minutes.
                self._subscribed = frozenset()
        self._forbidden.discard(topic)
        if error is None or error.code() not in ABOUT_A_TOPIC:
            self._missing.pop(topic, None)
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._forbidden.add(topic)
        else:
            self._missing[topic] += 1

    def _subscribe(self, consumer: Consumer) -> None:
        if (wanted := self._wanted()) == self._subscribed:
            return
        if wanted:
            consumer.subscribe(sorted(wanted), **self._callbacks)
        else:
            consumer.unsubscribe()
        self._subscribed = wanted

    def _wanted(self) -> frozenset[str]:
        if self._choosy:
            # With none left, all of them: then the group says what else is wrong.
            return self._topics - self._forbidden or self._topics
        # The broker takes a deleted topic away by itself with the other protocol only. Were it kept, reading would go
        # on at the former topic's offset when there is a new one of its name.
        return self._topics - {topic for topic, looks in self._missing.items() if looks >= _GONE}

    def _ask_group(self, consumer: Consumer) -> None:
        """Whether it may be used by now. It does not say so, where it has no partition for us."""
        try:
            consumer.committed([KafkaPartition(min(self._topics), 0)], timeout=_ASK_GROUP)
        except KafkaException:
            return  # As before: the client waits for a group that it may not use.
        with self._lock:
            self._troubles.group_answers()
