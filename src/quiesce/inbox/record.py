"""A record as a consumer gets it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a Kafka topic. `value` None is a tombstone. `timestamp` is seconds since the epoch."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: float = 0.0

    def header(self, name: str) -> str | None:
        """The last header of this name as text, or None. Bytes that are not UTF-8 are replaced."""
        for key, value in reversed(self.headers):
            if key == name and value is not None:
                return value.decode(errors="replace")
        return None

    @property
    def event_id(self) -> str | None:
        """The event id that the outbox relay wrote, for an inbox to tell a duplicate by."""
        return self.header("id")

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        # Key and value stay out: they may be personal data, and this is what logs show.
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class Batch:
    """Records fetched together, with the number of the assignment they came under."""

    records: Sequence[Record]
    assignment: int

    def __bool__(self) -> bool:
        return bool(self.records)
