"""The trace that an event belongs to: W3C trace context, stored with the event and sent as Kafka headers.

The core knows no tracing library. Who has one registers a source; `quiesce.telemetry` does it for OpenTelemetry.
"""

import re
from collections.abc import Callable, Mapping

TRACE_HEADERS = ("traceparent", "tracestate")

Source = Callable[[], Mapping[str, str]]
"""The headers of the trace that is current now; empty where there is none."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_sources: list[Source] = []


def register(source: Source | None) -> None:
    """Events enqueued from now on carry the trace that this source names. None: they carry none by themselves."""
    _sources[:] = [] if source is None else [source]


def current() -> Mapping[str, str]:
    """The trace headers to store with an event that names none itself."""
    if not _sources:
        # Nearly every service without tracing, for every event.
        return {}
    given = _sources[0]()
    return {name: given[name] for name in TRACE_HEADERS if name in given}


def valid(traceparent: object) -> bool:
    """Whether it has the form of the W3C recommendation: version, trace id, span id, flags."""
    return (
        isinstance(traceparent, str)
        and _TRACEPARENT.fullmatch(traceparent) is not None
        and not traceparent.startswith("ff")
    )
