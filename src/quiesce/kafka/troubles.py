"""What the client has reported and nobody has been told yet."""

import logging
import time
from collections.abc import Collection
from math import inf

from confluent_kafka import KafkaError

from quiesce.errors import QuiesceError, SettingsError, Unavailable
from quiesce.inbox.record import TopicPartition
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

_PLACE_IS_QUIET = 10.0
"""Seconds without a refusal after which a static member counts as one that has its place, though no partition came."""

ABOUT_A_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
    }
)


class Troubles:
    """Collects errors on the consumer's thread and gives them to whoever fetches. The caller holds the lock.

    The end of the consumer stays. What lasts is told again and again until something shows that it is over: the
    client itself says it once, and whoever asked a moment later would take the silence for an idle topic. The rest is
    told once. A topic that is missing or forbidden is logged by name while others flow, and told when none is left.
    """

    def __init__(self, topics: Collection[str], group: str) -> None:
        self._group = group
        self._topics = frozenset(topics)
        self._trouble: QuiesceError | None = None
        self._no_broker: str | None = None
        self._no_group: str | None = None
        self._no_place: str | None = None
        self._no_place_at = -inf
        self._wrong: dict[str, str] = {}
        self._told: str | None = None
        self._unread: set[str] = set()
        """Those of the wrong ones that are there and that brokers let nobody read, as they have told a fetch."""
        self.slot_is_held = False
        """A static member's place in the group belongs to one that is still there, or whose session is not over."""
        self.broken = False
        """The client is of no use any more: it is silent, and takes no commit."""
        self.unnamed = False
        """The group has refused all topics for the sake of one that it did not name."""

    @property
    def lasting(self) -> bool:
        """Whether something is wrong that may be over by now."""
        return bool(self._wrong) or self._standing() is not None

    @property
    def no_group(self) -> bool:
        return self._no_group is not None

    def take(self) -> QuiesceError | None:
        """What to tell whoever fetches, before anything else: the end, or what is told once."""
        trouble = self._trouble
        if trouble is not None and trouble.retryable:
            self._trouble = None
        return trouble

    def lasts(self, *, waited: bool) -> Unavailable | None:
        """What to tell whoever fetches when there is nothing to give: at once if it is new, else when they have
        `waited` for it to pass."""
        told, self._told = self._told, self._standing()
        if self._told is None or (self._told == told and not waited):
            return None
        # Anew, since whoever raises it gives it a traceback.
        return Unavailable(self._told)

    def add(self, trouble: QuiesceError) -> None:
        if self._trouble is None or self._trouble.retryable:
            self._trouble = trouble

    def of_client(self, error: KafkaError) -> None:
        """An error of the client as a whole. librdkafka mends most of them itself and has logged them."""
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION):
            self._no_broker = f"Kafka says {named(error)}"
        elif _is_fatal(error):
            self._end_or_passing(error)

    def in_place_of_record(self, error: KafkaError, partition: TopicPartition | None, *, ours: bool) -> None:
        """An error about the group or about a topic. `ours`: the partition is."""
        if partition is not None and error.code() in ABOUT_A_TOPIC:
            self.goes_wrong(partition.topic, error)
            if ours and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                self._unread.add(partition.topic)
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self.unnamed = True
        else:
            _LOG.warning("Kafka consumer: %s", named(error))
            self._end_or_passing(error)

    def goes_wrong(self, topic: str, error: KafkaError) -> None:
        """It is missing, or may not be read."""
        told = _of_topic(topic, error)
        # The client and a broker that is asked say the same with other words.
        if self._wrong.get(topic, "").partition(": ")[0] != told.partition(": ")[0]:
            _LOG.warning("Kafka consumer: %s", told)
            self._wrong[topic] = told

    def is_there(self, topic: str) -> bool:
        """Brokers, asked for it, describe it. That does not mean that they let anybody read it. Returns whether it was
        wrong before and is not now."""
        return topic not in self._unread and self._wrong.pop(topic, None) is not None

    def answered(self, now: float) -> None:
        """A broker has answered."""
        self._no_broker = None
        if now - self._no_place_at > _PLACE_IS_QUIET:
            self._no_place = None

    def silent(self) -> None:
        """No broker answers what it was asked."""
        self._no_broker = self._no_broker or "no Kafka broker answers"

    def group_answers(self) -> None:
        self._no_group = None

    def flows(self, topics: Collection[str]) -> None:
        """Records of these topics came, or partitions of them were assigned; or none, where others have them."""
        self._no_broker = self._no_group = self._no_place = None
        for topic in topics:
            self._wrong.pop(topic, None)
        self._unread.difference_update(topics)

    def _standing(self) -> str | None:
        no_topic = next(iter(self._wrong.values())) if self._wrong.keys() >= self._topics else None
        return (
            self._no_place
            or self._no_broker
            or self._no_group
            or (f"no topic can be read: {no_topic}" if no_topic is not None else None)
        )

    def _end_or_passing(self, error: KafkaError) -> None:
        if _is_fatal(error) and _SLOT_IS_HELD in error.str():
            self.slot_is_held = True
            self._no_place_at = time.monotonic()
            self._no_place = (
                "the member's place in the group (group.instance.id) is still held; waiting until its holder "
                f"leaves or its session is over: {named(error)}"
            )
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            self._no_group = f"group {self._group!r} may not be used, grant the user READ on it: {named(error)}"
        else:
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
