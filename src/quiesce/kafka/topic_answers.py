"""What the brokers say of topics when asked: blocking questions, with a client made for each."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

# The public names are there too, but not for type checkers: they are not re-exported explicitly.
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource

from quiesce.kafka.settings import Settings

_SILENT = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
    }
)
_WRONG = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION})
_MORE = 1.0
"""Seconds that a future may take beyond the time limit of its own request."""


class NoBrokerAnswered(Exception):
    """Nothing is known yet. It never leaves the room."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A topic that exists."""

    limit: int | None = None
    """Its `max.message.bytes`; None where the broker would not say."""
    partitions: int = 0
    """How many it has; 0 where the broker would not say."""
    leaderless: frozenset[int] = frozenset()
    """Partitions that nothing can be written to now."""
    may_write: bool | None = None
    """Whether we may write to it; None where nobody asked, or the broker would not say."""


def ask(
    settings: Settings, topics: Collection[str], timeout: float, *, rights: bool = False
) -> Mapping[str, Answer | KafkaError]:
    """Asks the brokers about topics; blocking. A topic that does not exist, or is forbidden, has an error.

    A broker that refuses a question, or does not know it (no right to describe configurations, not Apache
    Kafka), leaves that part of the answer out. `rights`: asks whether we may write as well.

    Raises:
        NoBrokerAnswered: within `timeout` seconds for each of the questions.
    """
    admin = AdminClient(settings)
    answers: dict[str, Answer | KafkaError] = {}
    limits = _limits(admin, topics, timeout)
    for topic in topics:
        limit = limits[topic]
        answers[topic] = limit if isinstance(limit, KafkaError) else _partitions(admin, topic, limit, timeout)
    there = [topic for topic, answer in answers.items() if isinstance(answer, Answer)]
    if rights and there:
        for topic, may_write in _rights(admin, there, timeout).items():
            known = answers[topic]
            assert isinstance(known, Answer)
            answers[topic] = replace(known, may_write=may_write)
    return answers


def _limits(admin: AdminClient, topics: Collection[str], timeout: float) -> Mapping[str, int | KafkaError | None]:
    limits: dict[str, int | KafkaError | None] = {}
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    for resource, future in admin.describe_configs(resources, request_timeout=timeout).items():
        try:
            entry = future.result(timeout + _MORE).get("max.message.bytes")
        except (KafkaException, TimeoutError) as error:
            reason: KafkaError | None = error.args[0] if isinstance(error, KafkaException) else None
            # Silence may mean this question alone. The next one every broker understands.
            wrong = reason is not None and reason.code() in _WRONG
            limits[resource.name] = reason if wrong else None
        else:
            limits[resource.name] = int(entry.value) if entry is not None else None
    return limits


def _partitions(admin: AdminClient, topic: str, limit: int | None, timeout: float) -> Answer | KafkaError:
    try:
        found = admin.list_topics(topic, timeout=timeout).topics[topic]
    except KafkaException as error:
        if error.args[0].code() not in _SILENT:
            return Answer(limit)
        raise NoBrokerAnswered(error.args[0].str()) from error
    if found.error is not None and (
        found.error.code() in _WRONG or found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    ):
        wrong: KafkaError = found.error
        return wrong
    leaderless = frozenset(number for number, partition in found.partitions.items() if partition.leader < 0)
    return Answer(limit, len(found.partitions), leaderless)


def _rights(admin: AdminClient, topics: Collection[str], timeout: float) -> Mapping[str, bool | None]:
    rights: dict[str, bool | None] = {}
    asked = admin.describe_topics(
        TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=timeout
    )
    for topic, future in asked.items():
        try:
            allowed = future.result(timeout + _MORE).authorized_operations
        except (KafkaException, TimeoutError):
            rights[topic] = None
        else:
            rights[topic] = AclOperation.WRITE in allowed if allowed else None
    return rights
