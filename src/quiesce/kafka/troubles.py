"""What the client has reported and nobody has been told yet."""

import logging
from collections.abc import Collection

from confluent_kafka import KafkaError

from quiesce.errors import QuiesceError, SettingsError, Unavailable
from quiesce.kafka.verdict import named

_LOG = logging.getLogger("quiesce.kafka")

_WRONG_SETTING = {
    KafkaError.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms",
        "a value between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms",
    ),
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: (
        "partition.assignment.strategy",
        "one that the other members of the group have too",
    ),
    KafkaError.INVALID_GROUP_ID: ("group.id", "a group's name"),
}

_ABOUT_A_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
    }
)


class Troubles:
    """Collects errors on the consumer's thread and gives them to whoever fetches.

    What may pass is told once. The end of the consumer stays. A topic that is missing or forbidden is
    logged by name while others flow; it is told when none is left, for then nobody would notice.
    """

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = frozenset(topics)
        self._failed_topics: set[str] = set()
        self._told_topics: set[str] = set()
        self._trouble: QuiesceError | None = None

    def take(self) -> QuiesceError | None:
        trouble = self._trouble
        if trouble is not None and trouble.retryable:
            self._trouble = None
        return trouble

    def add(self, trouble: QuiesceError) -> None:
        if self._trouble is None or self._trouble.retryable:
            self._trouble = trouble

    def of_client(self, error: KafkaError) -> None:
        """An error of the client as a whole. librdkafka mends most of them itself and has logged them."""
        if error.fatal() or error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION):
            self.add(_as_exception(error))

    def in_place_of_record(self, error: KafkaError, topic: str | None) -> None:
        """An error about the group or about a topic."""
        if topic is None or error.code() not in _ABOUT_A_TOPIC:
            _LOG.warning("Kafka consumer: %s", named(error))
            self.add(_as_exception(error))
            return
        if topic not in self._told_topics:
            _LOG.warning("Kafka consumer: topic %r: %s", topic, named(error))
        self._told_topics.add(topic)
        self._failed_topics.add(topic)
        if self._failed_topics >= self._topics:
            self._failed_topics.clear()
            self.add(Unavailable(f"no topic can be read: of {topic!r} Kafka says {named(error)}"))

    def flows(self, topics: Collection[str]) -> None:
        """Partitions of these topics were assigned."""
        self._failed_topics.difference_update(topics)
        self._told_topics.difference_update(topics)


def _as_exception(error: KafkaError) -> QuiesceError:
    """A wrong setting, the end, or something that passes."""
    if error.code() in _WRONG_SETTING:
        name, takes = _WRONG_SETTING[error.code()]
        return SettingsError(f"setting {name!r} of the Kafka consumer: refused ({named(error)}), takes {takes}")
    if error.fatal() or error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID):
        return QuiesceError(f"the Kafka consumer is broken for good: {named(error)}")
    return Unavailable(f"Kafka says {named(error)}")
