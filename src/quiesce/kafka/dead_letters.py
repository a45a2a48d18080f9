"""The dead-letter topic: where records go that are given up."""

import logging
from collections.abc import Callable, Hashable, Mapping

from quiesce.errors import SetAsideRefused, SettingsError
from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Record
from quiesce.inbox.retry_headers import origin
from quiesce.kafka.dead_forms import TooLarge, forms, place_of
from quiesce.kafka.record_client import Outgoing
from quiesce.kafka.record_writer import RecordTooLarge, RecordWriter
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed

_LOG = logging.getLogger("quiesce.kafka")

DEAD_SUFFIX = ".dead"


def dead_topic_of(topic: str) -> str:
    """The dead-letter topic of a source topic, unless another is named: `orders.dead` for `orders`."""
    return topic + DEAD_SUFFIX


class KafkaDeadLetters:
    """A `SetsAside`: writes the record to a dead-letter topic, with the reason and its origin in headers.

    Key and value go byte for byte, a null as a null, and so do the record's own headers. The partition is that of the
    key, whatever number of partitions the topic has. It is `acks=all`: once `set_aside` returns, the record is there.

    A record that does not fit the topic's size limit because of the headers it gets, or because this topic takes less
    than its source, loses as little as will do: first most of the reason's text, then the value, then its own headers,
    last the key. The header `quiesce-cut` says what, and the origin says where all of it still stands.

    The topic is never created here. Give it a retention longer than the time in which somebody looks.

    Args:
        bootstrap_or_config: an address, or a mapping of librdkafka settings; `settings` are laid over it.
        topic: the name of the dead-letter topic, or a function from the topic in which a record was first read.
        too_large: "refuse" cuts nothing but the reason's text, and raises `SetAsideRefused`.

    Raises:
        SettingsError: a setting that would break acks, or a wrong argument.
    """

    def __init__(
        self,
        bootstrap_or_config: str | Mapping[str, object],
        *,
        topic: str | Callable[[str], str] = dead_topic_of,
        too_large: TooLarge = "cut",
        name: str = "kafka-dead-letters",
        part: Part = Part.PRODUCERS,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        if too_large not in ("cut", "refuse"):
            raise SettingsError(f"setting 'too_large' of the dead letters: got {too_large!r}, takes cut or refuse")
        self._topic_of = by_source("dead letters", topic)
        self._named = topic if isinstance(topic, str) else None
        self._too_large: TooLarge = too_large
        self._writer = RecordWriter(bootstrap_or_config, settings)
        self.name = name
        self.part = part

    async def open(self) -> "KafkaDeadLetters":
        """Warns if the topic is not there, where it has one name.

        Raises:
            Unavailable: no broker answered within five seconds.
        """
        await self._writer.open()
        if self._named is not None:
            await self._writer.look_at(self._named, "Until then, records that are given up stay, and their keys wait")
        return self

    async def close(self, deadline: Deadline) -> Closed:
        """Waits for acks until the deadline; `undelivered` counts those that did not come. Safe to call twice."""
        return await self._writer.close(deadline)

    async def set_aside(self, record: Record, reason: Reason, deadline: Deadline) -> None:
        """Returns when the dead-letter topic has the record.

        Raises:
            Unavailable: no ack by the deadline, or the topic does not exist, or may not be written to; which one, the
                message says. Nothing may be committed for it.
            SetAsideRefused: it does not fit, with all that may be cut; or its dead-letter topic is the one that it
                was read from.
        """
        topic = self._topic_of(origin(record).topic)
        if topic == record.topic:
            raise SetAsideRefused(f"{record}: its dead-letter topic is the topic it came from: it would never end")
        known = await self._writer.know(topic, deadline)
        why: RecordTooLarge | None = None
        for form in forms(record, reason, topic, self._too_large):
            partition = None
            if form.key is None and record.key is not None:
                partition = place_of(record.key, known.partitions)
            outgoing = Outgoing(identity_of(record, reason), topic, form.key, form.value, form.headers, partition)
            try:
                await self._writer.write(outgoing, deadline)
            except RecordTooLarge as error:
                why = error
                continue
            if form.cut:
                _LOG.warning("%s went to %s without its %s: %s", record, topic, form.cut, why)
            return
        raise SetAsideRefused(f"{record} cannot be set aside: {why}. Raise max.message.bytes of the topic") from why


def identity_of(record: Record, reason: Reason) -> Hashable:
    """Two consumers may give up the same record: each of them is to have it kept."""
    return record.topic, record.partition, record.offset, reason.consumer


def by_source(what: str, topic: str | Callable[[str], str]) -> Callable[[str], str]:
    """From the topic that a record was first read from to the one it goes to. Raises SettingsError for no name."""
    if not isinstance(topic, str):
        return topic
    if not topic:
        raise SettingsError(f"setting 'topic' of the {what}: got nothing, takes a topic's name, or a function")
    name = topic
    return lambda _: name
