"""What handles a record: one coroutine function, one for each event type or topic, or one for whole batches."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from quiesce.errors import SettingsError
from quiesce.inbox.record import Record
from quiesce.inbox.retry_headers import came_back, origin

Handler = Callable[..., Awaitable[object]]

TYPE_HEADER = "type"
"""The header that the outbox relay writes an event's type into."""


@dataclass(frozen=True, slots=True)
class Routes:
    """Made by `by_type` and `by_topic`."""

    by: Literal["type", "topic"]
    handlers: Mapping[str, Handler]
    default: Handler | None
    retry_topic_of: Callable[[str], str] | None = None
    """From a source topic to its retry topic, where the consumer has one."""

    def __post_init__(self) -> None:
        if not self.handlers or not all(callable(handler) for handler in self.handlers.values()):
            raise SettingsError(
                f"by_{self.by}: got {dict(self.handlers)!r}, takes a mapping of one {self.by} or more to coroutine "
                "functions (one for whole batches stands alone: batches(handler))"
            )

    def of(self, record: Record) -> Handler | None:
        """The handler of this record; None if there is none for it."""
        if self.by == "topic":
            # One that comes by our retry topic is handled as where it comes from; of others the headers steer nothing.
            handler = self.handlers.get(record.topic)
            if handler is None and came_back(record, self.retry_topic_of):
                handler = self.handlers.get(origin(record).topic)
            return handler or self.default
        name = record.header(TYPE_HEADER)
        return self.default if name is None else self.handlers.get(name, self.default)


@dataclass(frozen=True, slots=True)
class Batches:
    """Made by `batches`."""

    handler: Handler

    def of(self, record: Record) -> Handler | None:
        return self.handler


def by_type(handlers: Mapping[str, Handler], *, default: Handler | None = None) -> Routes:
    """A handler for each event type, which stands in the header `type`: `by_type({"OrderPlaced": on_placed})`.

    A record of another type, or of none, goes to `default`; without one it is bad input, `unknown_type`.

    Raises:
        SettingsError: there is no handler, or one is not callable.
    """
    return Routes("type", dict(handlers), default)


def by_topic(handlers: Mapping[str, Handler], *, default: Handler | None = None) -> Routes:
    """A handler for each topic. A record of another topic is bad input, `unknown_type`, unless there is a default.

    Raises:
        SettingsError: there is no handler, or one is not callable.
    """
    return Routes("topic", dict(handlers), default)


def batches(handler: Handler) -> Batches:
    """A handler that gets a list of records instead of one: `async def handle(records, db)`.

    The records lie in order per partition; there may be several partitions in one list. It handles all or raises. Who
    knows which record failed says so: `raise RecordFailed(record) from error`. That one is then tried again after a
    wait, and set aside in the end, while the others go on. Where nobody says it, the batch is split until the record
    is found.
    """
    return Batches(handler)


@dataclass(frozen=True, slots=True)
class OneForAll:
    """One coroutine function for each record."""

    handler: Handler

    def of(self, record: Record) -> Handler | None:
        return self.handler


def handlers_of(given: object, retry_topic_of: Callable[[str], str] | None = None) -> Routes | Batches | OneForAll:
    """The handlers as `Consumer` is given them, and the retry topic of a source topic, if there is one.

    Raises:
        SettingsError: it is none of those.
    """
    if isinstance(given, Routes):
        return replace(given, retry_topic_of=retry_topic_of)
    if isinstance(given, Batches):
        return given
    if callable(given):
        return OneForAll(given)
    raise SettingsError(
        f"handlers of a consumer: got {type(given).__name__}, takes a coroutine function, by_type({{...}}), "
        "by_topic({...}) or batches(handler)"
    )


def json_value(record: Record) -> Any:
    """For `decode=`: the record's value as JSON in UTF-8. A record without a value has the value None.

    Raises:
        ValueError: the value is no JSON.
    """
    return None if record.value is None else json.loads(record.value)
