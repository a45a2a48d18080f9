"""The trace of an event: stored when it is enqueued, continued where it is consumed."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from quiesce.inbox.record import Record
from quiesce.outbox import trace
from quiesce.outbox.trace import TRACE_HEADERS

_PROPAGATOR = TraceContextTextMapPropagator()


def carry_trace_context(carry: bool = True) -> None:
    """Events that are enqueued from now on carry the W3C trace context of the span that is current then.

    Call it once, where tracing is set up. It holds for the whole process; `carry=False` ends it. The context is stored
    with the event and sent as the headers `traceparent` and `tracestate`; the relay adds no span of its own.
    """
    trace.register(_current if carry else None)


@contextmanager
def continued(record: Record) -> Iterator[None]:
    """Spans begun inside belong to the trace that the record's event came from: `with continued(record): ...`.

    A record without one changes nothing.
    """
    carrier = {name: value for name in TRACE_HEADERS if (value := record.header(name)) is not None}
    if "traceparent" not in carrier:
        yield
        return
    token = context.attach(_PROPAGATOR.extract(carrier, context.get_current()))
    try:
        yield
    finally:
        context.detach(token)


def _current() -> dict[str, str]:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier
