"""From confluent-kafka's messages and partitions to ours."""

from collections.abc import Iterable
from typing import cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.inbox.record import Record, TopicPartition


def as_record(message: Message) -> Record:
    kind, milliseconds = message.timestamp()
    # The stubs allow text in headers, as `produce` does; what comes from a broker is bytes.
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return Record(
        message.topic() or "",
        _number(message.partition()),
        _number(message.offset()),
        message.key(),
        message.value(),
        tuple(headers),
        0.0 if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds / 1000,
    )


def _number(value: int | None) -> int:
    assert value is not None  # a message that a broker sent has both
    return value


def as_partitions(partitions: Iterable[KafkaPartition]) -> set[TopicPartition]:
    return {TopicPartition(one.topic, one.partition) for one in partitions}


def shown(partitions: Iterable[TopicPartition]) -> str:
    """Partitions for people, such as `orders[0], orders[1]`."""
    return ", ".join(f"{topic}[{number}]" for topic, number in sorted(partitions)) or "nothing"
