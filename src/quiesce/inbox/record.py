"""A record as a consumer gets it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

Headers = tuple[tuple[str, bytes | None], ...]


_UNREAD: tuple[Headers, float] = ((), 0.0)


class TopicPartition(NamedTuple):
    topic: str
    partition: int


Reader = Callable[[Any], tuple[Headers, float]]
"""Reads headers and timestamp out of the client's own message."""


class Record:
    """One record of a Kafka topic. `value` None is a tombstone. `timestamp` is seconds since the epoch.

    It is not to be changed. It is no dataclass, since a consumer makes a hundred thousand a second. For the same
    reason `message` is kept, and `read` for headers and timestamp once somebody asks for them.
    """

    __slots__ = ("_message", "_read", "_rest", "key", "offset", "partition", "source", "topic", "value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp: float = 0.0,
        source: TopicPartition | None = None,
        message: object = None,
        read: Reader | None = None,
    ) -> None:
        self.topic: Final = topic
        self.partition: Final = partition
        self.offset: Final = offset
        self.key: Final = key
        self.value: Final = value
        self.source: Final = source or TopicPartition(topic, partition)
        self._message = message
        self._read = read
        self._rest = (headers, timestamp) if read is None else _UNREAD

    @property
    def headers(self) -> Headers:
        return self._read_rest()[0]

    @property
    def timestamp(self) -> float:
        return self._read_rest()[1]

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
    def checksum(self) -> int:
        """Of key and timestamp: tells this record from another one that has its place, in a topic made anew."""
        return crc32(self.key or b"", round(self.timestamp * 1000) & 0xFFFFFFFF)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.source, self.offset))

    def __str__(self) -> str:
        # Key and value stay out: they may be personal data, and this is what logs show.
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def __repr__(self) -> str:
        return f"<Record {self}>"

    def _read_rest(self) -> tuple[Headers, float]:
        if self._read is not None:
            self._rest = self._read(self._message)
            self._message = self._read = None
        return self._rest

    def _fields(self) -> tuple[object, ...]:
        return self.source, self.offset, self.key, self.value, self.headers, self.timestamp


@dataclass(frozen=True, slots=True)
class Batch:
    """Records fetched together, with the number of the assignment they came under."""

    records: Sequence[Record]
    assignment: int

    def __bool__(self) -> bool:
        return bool(self.records)
