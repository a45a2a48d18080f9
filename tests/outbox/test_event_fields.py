"""What a writer may put into the fields of an event: what is refused is refused with the field's name."""

import dataclasses
import enum
import uuid
from collections.abc import Mapping

import pytest

from quiesce.errors import EnqueueError, PayloadNotSerialisable
from quiesce.outbox import OutboxEvent, statement
from quiesce.outbox.payload import encoded

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HALF = "x\ud800"
"""Half of a surrogate pair: text in Python, and none anywhere else."""


class Name(str, enum.Enum):  # noqa: UP042 - what is written so, too
    ORDERS = "orders"


class BrokenModel:
    def model_dump(self, **_options: object) -> Mapping[str, object]:
        raise ZeroDivisionError("of its own")


@dataclasses.dataclass(init=False)
class BrokenField:
    total: int

    def __getattribute__(self, name: str) -> object:
        if name == "total":
            raise LookupError("of its own")
        return super().__getattribute__(name)


def event(**fields: object) -> OutboxEvent:
    return OutboxEvent(**{"topic": "orders", "aggregate_id": "k", "type": "Placed", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"topic": HALF}, "event topic: .* half a surrogate pair"),
        ({"topic": ""}, "event topic: is empty"),
        ({"topic": 5}, "event topic: got 5, takes text"),
        ({"topic": "a b!"}, "event topic: got 'a b!', which Kafka cannot have"),
        ({"topic": "über"}, "event topic: .* which Kafka cannot have"),
        ({"topic": "orders\n"}, "event topic: .* which Kafka cannot have"),
        ({"topic": "."}, "event topic: .* which Kafka cannot have"),
        ({"topic": ".."}, "event topic: .* which Kafka cannot have"),
        ({"topic": "x" * 250}, "event topic: .* which Kafka cannot have"),
        ({"aggregate_id": HALF}, "event aggregate_id: .* half a surrogate pair at 1"),
        ({"aggregate_id": uuid.UUID(int=1)}, "event aggregate_id: got UUID.*, takes text"),
        ({"aggregate_id": "k\0"}, "event aggregate_id: has a NUL"),
        ({"type": HALF}, "event type: .* half a surrogate pair"),
        ({"type": None}, "event type: got None, takes text"),
        ({"id": 5}, "event id: got 5, takes a UUID"),
        ({"id": str(uuid.UUID(int=1))}, "event id: got '.*', takes a UUID"),
        ({"id": None}, "event id: got None, takes a UUID"),
        ({"headers": None}, "event headers: got NoneType, takes a mapping"),
        ({"headers": [("a", "b")]}, "event headers: got list, takes a mapping"),
        ({"headers": {"h": HALF}}, "event header 'h': its value .* half a surrogate pair"),
        ({"headers": {HALF: "v"}}, "event header .*: its name .* half a surrogate pair"),
        ({"headers": {"h": 5}}, "event header 'h': its value got 5, takes text"),
        ({"headers": {5: "v"}}, "event header 5: its name got 5, takes text"),
        ({"headers": {"h": "\0"}}, "event header 'h': its value has a NUL"),
        ({"traceparent": TRACE, "tracestate": HALF}, "event tracestate: .* half a surrogate pair"),
        ({"traceparent": TRACE, "tracestate": 5}, "event tracestate: got 5, takes text"),
        ({"traceparent": 5}, "event traceparent: got 5"),
    ],
    ids=lambda given: ascii(given)[:40],
)
def test_what_cannot_be_stored_or_sent_is_refused_by_its_field(fields: Mapping[str, object], told: str) -> None:
    with pytest.raises(EnqueueError, match=told):
        event(**fields).check()


@pytest.mark.parametrize("topic", ["orders", "Orders.v1_new-er", "x", "x" * 249, "...", Name.ORDERS, "__odd"])
def test_a_name_that_kafka_can_have_is_taken(topic: str) -> None:
    event(topic=topic).check()


def test_text_of_any_language_is_taken() -> None:
    one = event(aggregate_id="été 🙂", type="Bestellung geändert", headers={"über": "🙂"}, payload="🙂")
    assert statement(one).values[4] == "🙂".encode()


@pytest.mark.parametrize(
    ("payload", "told", "cause"),
    [
        (HALF, "payload of 'Placed' for 'k' cannot be written as UTF-8", UnicodeEncodeError),
        ({"deep": [HALF]}, "payload of 'Placed' for 'k' cannot be written as JSON", UnicodeEncodeError),
        (BrokenModel(), "cannot be written as JSON: ZeroDivisionError: of its own", ZeroDivisionError),
        ([BrokenField()], "cannot be written as JSON: LookupError: of its own", LookupError),
    ],
    ids=["text", "deep", "model", "field"],
)
def test_a_payload_that_cannot_be_written_is_refused_with_its_reason(
    payload: object, told: str, cause: type[Exception]
) -> None:
    with pytest.raises(PayloadNotSerialisable, match=told) as refused:
        event(payload=payload).check()
    assert isinstance(refused.value.__cause__, cause)


def test_bytes_that_are_let_go_of_are_refused() -> None:
    given = memoryview(b"abc")
    given.release()
    with pytest.raises(PayloadNotSerialisable, match="released"):
        encoded(given)
