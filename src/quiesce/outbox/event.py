"""The event as its writer makes it, and as a relay claims it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from quiesce.errors import EnqueueError, EventTooLarge, PayloadNotSerialisable
from quiesce.event_ids import new_event_id
from quiesce.outbox.fields import wrong_headers, wrong_id, wrong_name, wrong_text, wrong_topic
from quiesce.outbox.payload import encoded
from quiesce.outbox.trace import TRACE_HEADERS, current, valid

MAX_EVENT_BYTES = 900_000
"""Default limit of key, payload and headers together: below the 1 MiB that a Kafka topic takes by default."""

RESERVED_HEADERS = frozenset({"id", "type", *TRACE_HEADERS})
"""Header names that stand for something: fields of the event say them."""


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """An event to be published once the transaction that enqueues it has committed.

    `payload`: bytes and str go out as they are; None is a tombstone; anything else goes out as compact
    JSON, dataclasses, pydantic models and msgspec structs included. `aggregate_id` is the Kafka key: events of one
    aggregate arrive in the order of their transactions. `id` is the event's identity everywhere; leave it out and one
    of version 7 is made. `traceparent` and `tracestate` are the W3C trace context that goes along; left out, it is the
    current one, where `quiesce.telemetry.carry_trace_context()` was called.
    """

    topic: str
    aggregate_id: str
    type: str
    payload: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    id: UUID = field(default_factory=new_event_id)
    traceparent: str | None = None
    tracestate: str | None = None

    def encoded_payload(self) -> bytes | None:
        """The payload as it goes to Kafka.

        Raises:
            PayloadNotSerialisable: neither JSON nor UTF-8 can carry it, or it fails while it is written.
        """
        try:
            return encoded(self.payload)
        except PayloadNotSerialisable as error:
            form = "UTF-8" if isinstance(self.payload, str) else "JSON"
            raise PayloadNotSerialisable(
                f"payload of {self.type!r} for {self.aggregate_id!r} cannot be written as {form}: {error}"
            ) from error.__cause__

    def stored_headers(self) -> dict[str, str]:
        """The event's own headers, and those of the trace it belongs to: its own, else the current one."""
        if self.traceparent is None:
            return {**self.headers, **current()}
        state = {} if self.tracestate is None else {"tracestate": self.tracestate}
        return {**self.headers, "traceparent": self.traceparent, **state}

    def check(self, max_event_bytes: int = MAX_EVENT_BYTES) -> bytes | None:
        """Refuses what could never be published, and returns the encoded payload.

        Raises:
            EnqueueError: topic, aggregate_id or type is missing or cannot be stored as text, the topic's name is none
                that Kafka can have, the id is no UUID, or a header is reserved or not text.
            PayloadNotSerialisable: see `encoded_payload`.
            EventTooLarge: key, payload and headers exceed `max_event_bytes`.
        """
        for part, wrong in (
            ("topic", wrong_topic(self.topic)),
            ("aggregate_id", wrong_name(self.aggregate_id)),
            ("type", wrong_name(self.type)),
            ("id", wrong_id(self.id)),
            ("headers", wrong_headers(self.headers)),
        ):
            if wrong is not None:
                raise EnqueueError(f"event {part}: {wrong}")
        for name, value in self.headers.items():
            if name in RESERVED_HEADERS:
                raise EnqueueError(
                    f"event header {name!r}: this name has a meaning of its own; it is a field of the event"
                )
            if (wrong := wrong_text(name)) is not None:
                raise EnqueueError(f"event header {name!r}: its name {wrong}")
            if (wrong := wrong_text(value)) is not None:
                raise EnqueueError(f"event header {name!r}: its value {wrong}")
        if self.traceparent is not None and not valid(self.traceparent):
            raise EnqueueError(f"event traceparent: got {self.traceparent!r}, takes 00-<32 hex>-<16 hex>-<2 hex>")
        if self.tracestate is not None and (wrong := wrong_text(self.tracestate)) is not None:
            raise EnqueueError(f"event tracestate: {wrong}")
        payload = self.encoded_payload()
        size = len(self.aggregate_id.encode()) + len(payload or b"") + self._header_bytes()
        if size > max_event_bytes:
            raise EventTooLarge(
                f"event {self.type!r} for {self.aggregate_id!r} has {size:,} bytes, over max_event_bytes "
                f"{max_event_bytes:,}. Store the body elsewhere and send a reference, or raise the limit "
                "together with the topic's max.message.bytes"
            )
        return payload

    def _header_bytes(self) -> int:
        own = sum(len(name.encode()) + len(value.encode()) for name, value in self.stored_headers().items())
        # `id` carries 36 characters; both names are two and four long.
        return own + 2 + 36 + 4 + len(self.type.encode())


Outgoing = tuple[str, str, str, str, bytes | None, Mapping[str, str] | None]
"""The id as text, key, topic, type, payload, and the headers of its own, None if there are none."""


class ClaimedEvent(Protocol):
    """An event as a relay holds it between claim and settle. Never changes."""

    @property
    def position(self) -> int:
        """Its place in the table. It never leaves the database."""
        ...

    @property
    def id(self) -> UUID: ...

    @property
    def id_text(self) -> str:
        """The same as text, in its canonical form: what goes out as the header `id`."""
        ...

    @property
    def outgoing(self) -> Outgoing:
        """All of it that goes out, in one go: a publisher asks a hundred thousand times a second."""
        ...

    @property
    def aggregate_id(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def payload(self) -> bytes | None: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def attempts(self) -> int:
        """How often publishing it has failed for a reason of its own; outages do not count."""
        ...


# Not frozen, though nobody changes it: a frozen one takes five times as long to make.
@dataclass(slots=True, unsafe_hash=True)
class PlainEvent:
    """A `ClaimedEvent` of its own making. A store whose driver brings rows that will do needs none."""

    position: int
    id: UUID
    aggregate_id: str
    topic: str
    type: str
    payload: bytes | None = field(repr=False)
    headers: Mapping[str, str]
    attempts: int = 0

    @property
    def id_text(self) -> str:
        return str(self.id)

    @property
    def outgoing(self) -> Outgoing:
        return self.id_text, self.aggregate_id, self.topic, self.type, self.payload, self.headers or None
