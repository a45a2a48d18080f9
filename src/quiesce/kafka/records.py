"""From confluent-kafka's messages and partitions to ours."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import methodcaller
from typing import Protocol, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.inbox.record import Headers, Record, TopicPartition

_LOG = logging.getLogger("quiesce.kafka")

HEADERS_LOST = "quiesce-headers-lost"
"""The one header of a record of which no header could be read, so that dead letters say so."""

Fault = tuple[KafkaError, TopicPartition | None, int | None]
"""An error in place of a record, the partition and the offset that it is about."""


class _Fetched(Protocol):
    """A message that a broker sent has all these; the stubs allow for one that was made by hand. Of an error
    topic and partition may lack."""

    def error(self) -> KafkaError | None: ...
    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...


_topic = cast("Callable[[_Fetched], str]", Message.topic)
_partition = cast("Callable[[_Fetched], int]", Message.partition)


# Where a name is not UTF-8 it returns a list, with a hole in it, and sets an exception all the same. Called from Python
# that is seen at once or, once the interpreter has specialised the call, somewhere behind it; from C always at once.
# The next call would return that list and set none, and whoever looks into the hole crashes: one call for each message.
_headers = methodcaller("headers")


class Reader:
    """Makes records of messages: a hundred thousand a second, so each step counts."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, int], TopicPartition] = {}

    def read(self, messages: Sequence[Message]) -> tuple[dict[TopicPartition, list[Record]], list[Fault]]:
        """The records of each partition, in order, and what came in place of records."""
        runs: dict[TopicPartition, list[Record]] = {}
        faults: list[Fault] = []
        fetched = cast("Sequence[_Fetched]", messages)
        if any(map(Message.error, messages)):
            faults = [_fault(one) for one in fetched if one.error() is not None]
            fetched = [one for one in fetched if one.error() is None]
        # The client hands them over in stretches of one partition.
        for topic, of_topic in groupby(fetched, _topic):
            for partition, stretch in groupby(of_topic, _partition):
                source = self._source(topic, partition)
                # By position, which costs less; the topic's name is kept once and not with each record.
                topic, _ = source
                run = [
                    Record(topic, partition, one.offset(), one.key(), one.value(), (), 0.0, source, one, read_rest)
                    for one in stretch
                ]
                if source in runs:
                    runs[source] += run
                else:
                    runs[source] = run
        return runs, faults

    def _source(self, topic: str, partition: int) -> TopicPartition:
        source = self._sources.get((topic, partition))
        return source or self._sources.setdefault((topic, partition), TopicPartition(topic, partition))


def _fault(message: _Fetched) -> Fault:
    topic = message.topic()
    return (
        cast("KafkaError", message.error()),
        TopicPartition(topic, message.partition()) if topic else None,
        message.offset(),
    )


def read_rest(message: Message) -> tuple[Headers, float]:
    """The headers, and the time in seconds. Once for each message, see `_headers`."""
    kind, milliseconds = message.timestamp()
    timestamp = 0.0 if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds / 1000
    try:
        # The stubs allow text in headers, as `produce` does; what comes from a broker is bytes.
        headers = cast("list[tuple[str, bytes | None]]", _headers(message) or [])
    except (SystemError, UnicodeError):
        # confluent-kafka gives none of them if a single name is not UTF-8, which other clients let through. Raised
        # from here it would end the service, and the next one at the same record.
        place = f"{message.topic()}[{message.partition()}]@{message.offset()}"
        _LOG.warning("%s: its headers cannot be read: the name of one is not UTF-8", place)
        return ((HEADERS_LOST, b"a name is not UTF-8"),), timestamp
    return tuple(headers), timestamp


def as_record(message: Message) -> Record:
    """The record that a message without an error is."""
    runs, _ = Reader().read([message])
    ((record,),) = runs.values()
    return record


def as_partitions(partitions: Iterable[KafkaPartition]) -> set[TopicPartition]:
    return {TopicPartition(one.topic, one.partition) for one in partitions}


def as_kafka(
    partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int] | None = None
) -> list[KafkaPartition]:
    if offsets is None:
        return [KafkaPartition(*one) for one in partitions]
    return [KafkaPartition(*one, offsets[one]) for one in partitions]


def shown(partitions: Iterable[TopicPartition]) -> str:
    """Partitions for people, such as `orders[0], orders[1]`."""
    return ", ".join(f"{topic}[{number}]" for topic, number in sorted(partitions)) or "nothing"
