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

_SLOT_IS_HELD = KafkaError(KafkaError.UNRELEASED_INSTANCE_ID).str()
"""A fatal error has a code of its own, whatever it is about; its text has that of the cause."""

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
    logged by name while others flow; it is told when none is left, for then nobody would notice, and again until
    one is assigned: the client itself says it once.
    """

    def __init__(self, topics: Collection[str], group: str) -> None:
        self._group = group
        self._topics = frozenset(topics)
        self._failed_topics: set[str] = set()
        self._told_topics: set[str] = set()
        self._trouble: QuiesceError | None = None
        self.no_topic: Unavailable | None = None
        """None of the topics could be read, and the group has not answered since."""
        self.slot_is_held = False
        """A static member's place in the group belongs to one that is still there, or whose session is not over."""
        self.broken = False
        """The client is of no use any more: it is silent, and takes no commit."""

    def take(self, *, idle: bool) -> QuiesceError | None:
        """What to tell whoever fetches. `idle`: no partition is ours."""
        trouble = self._trouble
        if trouble is None and idle and self.no_topic is not None:
            # Anew, since whoever raises it gives it a traceback.
            return Unavailable(str(self.no_topic))
        if trouble is not None and trouble.retryable:
            self._trouble = None
        return trouble

    def add(self, trouble: QuiesceError) -> None:
        if self._trouble is None or self._trouble.retryable:
            self._trouble = trouble

    def of_client(self, error: KafkaError) -> None:
        """An error of the client as a whole. librdkafka mends most of them itself and has logged them."""
        if _is_fatal(error) or error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION):
            self._end_or_passing(error)

    def in_place_of_record(self, error: KafkaError, topic: str | None) -> None:
        """An error about the group or about a topic."""
        if topic is None or error.code() not in _ABOUT_A_TOPIC:
            _LOG.warning("Kafka consumer: %s", named(error))
            self._end_or_passing(error)
            return
        if topic not in self._told_topics:
            _LOG.warning("Kafka consumer: %s", _of_topic(topic, error))
        self._told_topics.add(topic)
        self._failed_topics.add(topic)
        if self._failed_topics >= self._topics:
            self._failed_topics.clear()
            self.no_topic = Unavailable(f"no topic can be read: {_of_topic(topic, error)}")
            self.add(self.no_topic)

    def flows(self, topics: Collection[str]) -> None:
        """The group has answered. Partitions of these topics were assigned; perhaps none, where others have them."""
        self.no_topic = None
        self._failed_topics.difference_update(topics)
        self._told_topics.difference_update(topics)

    def _end_or_passing(self, error: KafkaError) -> None:
        if _is_fatal(error) and _SLOT_IS_HELD in error.str():
            self.slot_is_held = True
            self.add(
                Unavailable(
                    "the member's place in the group (group.instance.id) is still held; waiting until its holder "
                    f"leaves or its session is over: {named(error)}"
                )
            )
            return
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            self.add(Unavailable(f"group {self._group!r} may not be used, grant the user READ on it: {named(error)}"))
            return
        self.broken = self.broken or _is_fatal(error)
        self.add(_as_exception(error))


def _of_topic(topic: str, error: KafkaError) -> str:
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"topic {topic!r} may not be read, grant the user READ on it: {named(error)}"
    return f"topic {topic!r} is not there, create it or correct the name: {named(error)}"


def _is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)


def _as_exception(error: KafkaError) -> QuiesceError:
    """A wrong setting, the end, or something that passes."""
    if error.code() in _WRONG_SETTING:
        name, takes = _WRONG_SETTING[error.code()]
        return SettingsError(f"setting {name!r} of the Kafka consumer: refused ({named(error)}), takes {takes}")
    if _is_fatal(error):
        return QuiesceError(f"the Kafka consumer is broken for good: {named(error)}")
    return Unavailable(f"Kafka says {named(error)}")
