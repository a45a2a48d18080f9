"""OpenTelemetry: one span for the shutdown, with a child for each of its parts.

A process that goes away takes with it what its exporter still holds back. So the spans are ended and flushed
inside the part `report`, within its bound, and not at the interpreter's exit.
"""

from typing import Any

from opentelemetry import context, trace
from opentelemetry.trace import Span, Status, StatusCode

from quiesce.lifecycle import events as ev
from quiesce.lifecycle.phases import Part


class OpenTelemetryShutdown:
    """Give it to a service: `@service("orders", observers=[OpenTelemetryShutdown()])`.

    The span is called `shutdown`, its children `shutdown http`, `shutdown workers` and so on. What was
    aborted, left or forced stands on it as span events. Names and figures only: never a payload.

    Args:
        provider: whose spans they are, and what is flushed; the global one by default.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._provider = provider
        self._span: Span | None = None
        self._parts: dict[Part, Span] = {}

    def observe(self, event: ev.Event) -> None:
        match event:
            case ev.StopRequested(reason=reason, available=available, scale=scale):
                self._begin(reason, available, scale)
            case ev.PartBegan(part=part, bound=bound):
                self._begin_part(part, bound)
            case ev.PartEnded(part=part, overran=overran):
                self._end_part(part, overran)
            case ev.AbortRequested(reason=reason):
                self._add("abort requested", {"reason": reason})
            case ev.WorkerEnded(worker=worker, outcome=outcome) if outcome != "finished":
                self._add("worker ended", {"worker": worker, "outcome": outcome})
            case ev.WorkAbandoned(worker=worker, what=what, count=count):
                self._add("work abandoned", {"worker": worker, "what": what, "count": count})
            case ev.ResourceClosed(resource=resource, outcome=outcome, undelivered=undelivered):
                self._add("closed", {"resource": resource, "outcome": outcome, "undelivered": undelivered})
            case ev.StillRunning(what=what, name=name, where=where):
                self._add("still running", {"what": what, "name": name, "where": where})
            case ev.ShutdownEnded(exit_code=exit_code):
                self._end(exit_code)
            case _:
                pass

    def flush(self, seconds: float) -> bool:
        """Sends what the provider's processors hold back. Blocks: the service calls it in a thread of its own."""
        force_flush = getattr(self._owner(), "force_flush", None)
        # A provider without it keeps nothing back.
        return True if force_flush is None else bool(force_flush(int(seconds * 1000)))

    def _owner(self) -> trace.TracerProvider:
        return self._provider or trace.get_tracer_provider()

    def _tracer(self) -> trace.Tracer:
        return self._owner().get_tracer("quiesce")

    def _begin(self, reason: str, available: float, scale: float) -> None:
        # A root: the stop may be requested in the middle of a request, and is no part of it.
        self._span = self._tracer().start_span(
            "shutdown",
            context.Context(),
            attributes={"quiesce.reason": reason, "quiesce.available_seconds": available, "quiesce.scale": scale},
        )

    def _begin_part(self, part: Part, bound: float) -> None:
        if self._span is not None:
            self._parts[part] = self._tracer().start_span(
                f"shutdown {part.value}",
                trace.set_span_in_context(self._span, context.Context()),
                attributes={"quiesce.part": part.value, "quiesce.bound_seconds": bound},
            )

    def _end_part(self, part: Part, overran: bool) -> None:
        span = self._parts.pop(part, None)
        if span is not None:
            span.set_attribute("quiesce.overran", overran)
            span.end()

    def _add(self, name: str, attributes: dict[str, Any]) -> None:
        if self._span is not None:
            self._span.add_event(name, attributes)

    def _end(self, exit_code: int) -> None:
        # The part `report` is not over yet, but a span must have ended before it can be flushed.
        for part in list(self._parts):
            self._end_part(part, overran=False)
        if self._span is not None:
            self._span.set_attribute("quiesce.exit_code", exit_code)
            if exit_code != 0:
                self._span.set_status(Status(StatusCode.ERROR, f"exit code {exit_code}"))
            self._span.end()
            self._span = None
