"""One look at topics: whether they are there, and may be known to us. In a thread of its own: it takes a while."""

import threading
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException

ANSWER_BOUND = 2.0
"""Seconds that a broker has to answer for one topic in. The question waits behind a fetch that waits for records
(`fetch.wait.max.ms`), so half a second is nothing unusual: too long for the thread that polls."""


class TopicLook:
    """Asks for each of the topics, until it has all answers, a broker gives none, or it is ended.

    The one call on a consumer that its own thread does not make: a question of the client as a whole, which librdkafka
    takes from any thread. It has to be over before the client is closed.
    """

    def __init__(self, consumer: Consumer, topics: Sequence[str]) -> None:
        self.found: dict[str, KafkaError | None] = {}
        """What is wrong with each; None: it is there."""
        self.unanswered = False
        self._enough = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(consumer, topics), name="quiesce-kafka-topic-look", daemon=True
        )
        self._thread.start()

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def end(self, within: float) -> bool:
        """Asks no more. Waits up to `within` seconds, and returns whether it is over."""
        self._enough.set()
        self._thread.join(within)
        return self.over

    def _run(self, consumer: Consumer, topics: Sequence[str]) -> None:
        for topic in topics:
            if self._enough.is_set():
                return
            try:
                self.found[topic] = consumer.list_topics(topic, timeout=ANSWER_BOUND).topics[topic].error
            except KafkaException:
                self.unanswered = True
                return
