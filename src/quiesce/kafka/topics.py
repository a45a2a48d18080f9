"""What topics take: whether they exist, and how large a batch may be."""

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

# The public name is there too, but not for type checkers: it is not re-exported explicitly.
from confluent_kafka.admin._config import ConfigResource

from quiesce.kafka.blocking import in_thread
from quiesce.kafka.settings import Settings
from quiesce.kafka.verdict import judge, named
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Dead, Outcome, Retry

_LOG = logging.getLogger("quiesce.kafka")

Limit = int | None
"""The topic's `max.message.bytes`; None where the broker would not say."""

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ASK = 2.0
"""Seconds for one question; it is repeated."""
_FRAME = 68 + 40 + 6
"""Bytes in a batch of one record, at least, beside key, value, type and the user's headers: the frames of batch
and record, the header `id`, the name of the header `type`."""
_BATCH_ROOM = 512
"""Bytes that librdkafka may add to the batch size it was told, generously."""

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


class NoBrokerAnswered(Exception):
    """Nothing is known yet. It never leaves the room."""


class Topics:
    """What is known of the topics, asked of the brokers once for each.

    Why before sending: librdkafka finds out behind our back, one message at a time. Of three events of one
    key the first would be refused and the others accepted; and the broker refuses a batch as a whole, so
    small events would be condemned for the company they kept.
    """

    def __init__(self, settings: Settings, *, compressed: bool) -> None:
        self._settings = settings
        self._compressed = compressed
        self._limits: dict[str, Limit] = {}
        self._distrusted: set[str] = set()

    def forget(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._limits.pop(topic, None)

    async def refusals(
        self, events: Collection[ClaimedEvent], over: "asyncio.Future[None]"
    ) -> list[tuple[ClaimedEvent, Outcome]]:
        """The events that no topic takes, each with its outcome.

        It waits for an answer until `over` is done, since without a broker nothing can be sent anyway.
        """
        new = {event.topic for event in events} - self._limits.keys()
        wrong: dict[str, Outcome] = {
            topic: Dead(f"TOPIC_EXCEPTION: {topic!r} cannot be a topic's name")
            for topic in new
            if not _TOPIC_NAME.fullmatch(topic)
        }
        wrong.update(await self._learn(new - wrong.keys(), over))
        doubtful = {event.topic for event in events if self._too_large(event)} - new
        # A limit may have been raised since: a dead letter is not made on an old answer.
        wrong.update(await self._learn(doubtful, over))
        if not new and not doubtful:
            return []
        refused: list[tuple[ClaimedEvent, Outcome]] = []
        for event in events:
            if event.topic in wrong:
                refused.append((event, wrong[event.topic]))
            elif self._too_large(event):
                refused.append((event, Dead(self._reason(event))))
        return refused

    def batch_size(self, events: Iterable[ClaimedEvent]) -> int | None:
        """The largest batch that all topics of these events take; None if no limit is known."""
        limits = [limit for topic in {event.topic for event in events} if (limit := self._limits.get(topic))]
        return max(1, min(limits) - _BATCH_ROOM) if limits else None

    def distrust(self, topic: str) -> bool:
        """A batch was refused that the limit would have let through: it is asked for again.

        True if that cannot help: it could not be read, or was wrong before.
        """
        hopeless = self._limits.pop(topic, None) is None or topic in self._distrusted
        self._distrusted.add(topic)
        return hopeless

    def _too_large(self, event: ClaimedEvent) -> bool:
        limit = self._limits.get(event.topic)
        # What compression makes of it only the broker can say.
        return limit is not None and not self._compressed and _size(event) > limit

    def _reason(self, event: ClaimedEvent) -> str:
        return (
            f"MSG_SIZE_TOO_LARGE: at least {_size(event):,} bytes, topic {event.topic!r} takes "
            f"{self._limits[event.topic]:,} (max.message.bytes)"
        )

    async def _learn(self, topics: set[str], over: "asyncio.Future[None]") -> dict[str, Outcome]:
        """Fills the limits; returns the topics that nothing can go to, with the outcome of their events."""
        wrong: dict[str, Outcome] = {}
        while topics and not over.done():
            asked = in_thread("quiesce-kafka-topics", lambda: ask(self._settings, topics, _ASK))
            try:
                either: set[asyncio.Future[Any]] = {asked, over}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not asked.done():
                    break
                answers = asked.result()
            except NoBrokerAnswered:
                continue
            finally:
                asked.cancel()
            for topic, answer in answers.items():
                if isinstance(answer, KafkaError):
                    wrong[topic] = judge(answer) or Retry(named(answer))
                else:
                    self._limits[topic] = answer
            break
        return wrong


def _size(event: ClaimedEvent) -> int:
    """What the event takes in a batch of its own, at least: text counts one byte a character."""
    size = _FRAME + len(event.payload or b"") + len(event.aggregate_id) + len(event.type)
    if event.headers:
        size += sum(2 + len(name) + len(value) for name, value in event.headers.items())
    return size


def ask(settings: Settings, topics: Collection[str], timeout: float) -> Mapping[str, Limit | KafkaError]:
    """Asks the brokers about topics; blocking. A topic that does not exist, or cannot, has an error.

    A client of its own, made for the question: it is asked once for a topic. A broker that refuses the
    question, or does not know it (no right to describe configurations, not Apache Kafka), leaves the limit
    None.

    Raises:
        NoBrokerAnswered: within `timeout` seconds for each of two questions.
    """
    admin = AdminClient(settings)
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    answers: dict[str, Limit | KafkaError] = {}
    for resource, future in admin.describe_configs(resources, request_timeout=timeout).items():
        try:
            entry = future.result(timeout + 1.0).get("max.message.bytes")
        except (KafkaException, TimeoutError) as error:
            reason: KafkaError | None = error.args[0] if isinstance(error, KafkaException) else None
            if reason is None or reason.code() in _SILENT:
                # Silence may mean this question alone. The other one every broker understands.
                answers[resource.name] = _exists(admin, resource.name, timeout)
            else:
                answers[resource.name] = reason if reason.code() in _WRONG else None
        else:
            answers[resource.name] = int(entry.value) if entry is not None else None
    return answers


def _exists(admin: AdminClient, topic: str, timeout: float) -> KafkaError | None:
    try:
        error: KafkaError | None = admin.list_topics(topic, timeout=timeout).topics[topic].error
    except KafkaException as silence:
        raise NoBrokerAnswered(silence.args[0].str()) from silence
    return error if error is not None and error.code() in _WRONG else None
