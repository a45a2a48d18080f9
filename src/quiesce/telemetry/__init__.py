"""OpenTelemetry: a span of the shutdown, and the trace of an event from its writer to its consumer. `quiesce[otel]`."""

from quiesce.telemetry.shutdown_span import OpenTelemetryShutdown
from quiesce.telemetry.trace_context import carry_trace_context, continued

__all__ = ["OpenTelemetryShutdown", "carry_trace_context", "continued"]
