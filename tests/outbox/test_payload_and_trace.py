"""What a writer may hand over as a payload, and the trace that goes along."""

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Iterator

import msgspec
import pydantic
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span

from quiesce.errors import EnqueueError, EventTooLarge, PayloadNotSerialisable
from quiesce.inbox.record import Record
from quiesce.outbox import OutboxEvent, statement
from quiesce.outbox.payload import encoded
from quiesce.telemetry import carry_trace_context, continued

ID = uuid.UUID("0af76519-16cd-43dd-8448-eb211c80319c")
AT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Colour(enum.Enum):
    BLUE = "bleu"


@dataclasses.dataclass(frozen=True)
class Line:
    sku: str
    price: decimal.Decimal


@dataclasses.dataclass
class Order:
    id: uuid.UUID
    at: datetime.datetime
    lines: list[Line]
    colour: Colour = Colour.BLUE


class OrderStruct(msgspec.Struct):
    id: uuid.UUID
    at: datetime.datetime
    price: decimal.Decimal


class OrderModel(pydantic.BaseModel):
    id: uuid.UUID
    at: datetime.datetime
    price: decimal.Decimal = pydantic.Field(alias="unitPrice")


def event(payload: object = None, **more: object) -> OutboxEvent:
    return OutboxEvent("orders", "k", "Placed", payload, **more)  # type: ignore[arg-type]


def test_a_dataclass_is_json_at_any_depth() -> None:
    order = Order(ID, AT, [Line("été", decimal.Decimal("1.50"))])
    assert json.loads(encoded(order) or b"") == {
        "id": str(ID),
        "at": "2026-01-02T03:04:05+00:00",
        "lines": [{"sku": "été", "price": "1.50"}],
        "colour": "bleu",
    }
    assert json.loads(encoded({"order": order}) or b"")["order"]["id"] == str(ID)


def test_pydantic_and_msgspec_write_what_they_would_write_themselves() -> None:
    model = OrderModel(id=ID, at=AT, unitPrice=decimal.Decimal("1.50"))
    struct = OrderStruct(ID, AT, decimal.Decimal("1.50"))
    assert json.loads(encoded(model) or b"") == json.loads(model.model_dump_json(by_alias=True))
    assert json.loads(encoded(struct) or b"") == json.loads(msgspec.json.encode(struct))
    assert json.loads(encoded([model, struct]) or b"")[1]["price"] == "1.50"


def test_bytes_and_text_and_nothing_stay_what_they_are() -> None:
    assert encoded(b"\x00") == b"\x00"
    assert encoded(bytearray(b"\x01")) == b"\x01"
    assert encoded("é") == "é".encode()
    assert encoded(None) is None


@pytest.mark.parametrize("payload", [object(), {1, 2}, float("nan"), Order, {"deep": [object()]}])
def test_what_json_cannot_carry_is_refused_with_the_event_s_name(payload: object) -> None:
    with pytest.raises(PayloadNotSerialisable, match="payload of 'Placed' for 'k' cannot be written as JSON"):
        event(payload).check()


def test_a_loop_in_the_payload_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(PayloadNotSerialisable):
        event(endless).check()


def headers(one: OutboxEvent) -> dict[str, str]:
    return dict(json.loads(statement(one).values[5]))


def test_an_event_carries_the_trace_it_names() -> None:
    assert headers(event(traceparent=TRACE, tracestate="a=1", headers={"own": "x"})) == {
        "own": "x",
        "traceparent": TRACE,
        "tracestate": "a=1",
    }
    assert headers(event()) == {}


@pytest.mark.parametrize("wrong", ["", "00-xyz", TRACE.upper().replace("-", "_"), "ff" + TRACE[2:]])
def test_a_trace_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(EnqueueError, match="traceparent"):
        event(traceparent=wrong).check()


def test_the_trace_s_headers_are_fields_and_not_headers() -> None:
    for name in ("traceparent", "tracestate"):
        with pytest.raises(EnqueueError, match="a field of the event"):
            event(headers={name: TRACE}).check()


def test_the_trace_counts_towards_the_size() -> None:
    plain = event(b"x" * 100)
    size = 1 + 100 + 2 + 36 + 4 + len("Placed")
    plain.check(size)
    with pytest.raises(EventTooLarge):
        event(b"x" * 100, traceparent=TRACE).check(size)


@pytest.fixture
def carried() -> Iterator[TracerProvider]:
    carry_trace_context()
    yield TracerProvider()
    carry_trace_context(carry=False)


def test_the_current_span_is_carried_and_continued(carried: TracerProvider) -> None:
    tracer = carried.get_tracer("t")
    with tracer.start_as_current_span("request") as span:
        stored = headers(event())
        mine = span.get_span_context()
    assert stored["traceparent"].startswith(f"00-{mine.trace_id:032x}-{mine.span_id:016x}-")
    record = Record("orders", 0, 0, b"k", b"", tuple((name, value.encode()) for name, value in stored.items()))
    with continued(record), tracer.start_as_current_span("handle") as handled:
        assert handled.get_span_context().trace_id == mine.trace_id
        assert handled.parent is not None  # type: ignore[attr-defined]
        assert handled.parent.span_id == mine.span_id  # type: ignore[attr-defined]
    assert not get_current_span().get_span_context().is_valid


def test_without_a_current_span_nothing_is_carried(carried: TracerProvider) -> None:
    assert headers(event()) == {}
    with continued(Record("orders", 0, 0, None, None)):
        assert not get_current_span().get_span_context().is_valid


def test_the_event_s_own_trace_wins(carried: TracerProvider) -> None:
    with carried.get_tracer("t").start_as_current_span("request"):
        assert headers(event(traceparent=TRACE))["traceparent"] == TRACE
