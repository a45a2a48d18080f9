"""From what a writer has in hand to the bytes that go to Kafka."""

import dataclasses
import datetime
import decimal
import enum
import importlib
import json
import uuid
from typing import Any

from quiesce.errors import PayloadNotSerialisable


def encoded(payload: object) -> bytes | None:
    """The payload as it goes to Kafka.

    Bytes and text go out as they are, None is a tombstone. Everything else is compact JSON: what JSON has, dataclasses,
    pydantic models and msgspec structs, at any depth. A UUID, a date, a time and a Decimal become text, as pydantic and
    msgspec write them; an enum becomes its value.

    Raises:
        PayloadNotSerialisable: neither JSON nor UTF-8 can carry it, or it fails while it is written.
    """
    try:
        match payload:
            case None:
                return None
            case bytes():
                return payload
            case bytearray() | memoryview():
                return bytes(payload)
            case str() if not isinstance(payload, enum.Enum):
                return payload.encode()
        # NaN is refused: it is not JSON, and the reader would find out instead of the writer.
        text = json.dumps(payload, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadNotSerialisable(f"{error}. Pass bytes, or values that JSON has") from error
    except Exception as error:
        # A model's own code may raise anything.
        raise PayloadNotSerialisable(f"{type(error).__name__}: {error}") from error


def _plain(value: Any) -> object:
    """What json asks for when it does not know a value: the same in simpler terms."""
    match value:
        case enum.Enum():
            return value.value
        case uuid.UUID() | decimal.Decimal():
            return str(value)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case set() | frozenset():
            raise TypeError("a set has no order, so its JSON would differ from run to run; pass a sorted list")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # Not `asdict`, which would copy everything below first; json comes back for what it does not know.
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    # Neither library is imported unless the value itself comes from it.
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json", by_alias=True)
    if hasattr(value, "__struct_fields__") and not isinstance(value, type):
        return importlib.import_module("msgspec").to_builtins(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
