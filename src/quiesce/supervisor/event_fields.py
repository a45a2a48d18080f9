"""Events as plain values, for structured logs."""

import re
from dataclasses import fields
from enum import Enum

from quiesce.lifecycle import events as ev

_NAMED = {
    "seconds": "duration_seconds",
    "bound": "bound_seconds",
    "wait": "wait_seconds",
    "age": "age_seconds",
    "available": "available_seconds",
}
_INSTANTS = "at"
"""Instants of the service's own clock say nothing outside of it; the log line has a time of its own."""


def fields_of(event: ev.Event) -> dict[str, object]:
    """`event` is the kind, such as `part_ended`; durations carry `_seconds`, as everywhere."""
    values: dict[str, object] = {"event": re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()}
    for field in fields(event):
        if field.name == _INSTANTS:
            continue
        value = getattr(event, field.name)
        if isinstance(value, float):
            value = round(value, 6)
        elif isinstance(value, Enum):
            value = value.value
        values[_NAMED.get(field.name, field.name)] = value
    return values
