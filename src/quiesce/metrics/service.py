"""Metrics of the service itself: phases, workers, requests, the shutdown."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from quiesce.lifecycle import events as ev
from quiesce.lifecycle.phases import Phase
from quiesce.metrics.handlers import Children, Handlers

SHUTDOWN_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 25, 30, 40, 50, 60)
ITERATION_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

WHOLE = "all"
"""The label `part` of the whole shutdown."""


class ServiceMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._of = Children()
        self._shutdown = Histogram(
            "app_shutdown_duration_seconds",
            "Duration of a shutdown: the whole (part=all) and each part.",
            ["part"],
            buckets=SHUTDOWN_BUCKETS,
            registry=registry,
        )
        self._ready = Gauge("app_ready", "1 while the service is ready for traffic.", registry=registry)
        self._phase = Gauge("app_phase", "1 for the phase the service is in.", ["phase"], registry=registry)
        self._workers = Gauge("app_workers_running", "Workers that have begun and not ended.", registry=registry)
        self._requests = Gauge(
            "app_http_requests_in_flight", "Requests and websockets in the application's hands.", registry=registry
        )
        self._restarts = Counter(
            "app_worker_restarts", "Times that a failed worker began again.", ["worker"], registry=registry
        )
        self._abandoned = Counter(
            "app_abandoned_work", "Work that had begun and was left unfinished.", ["worker"], registry=registry
        )
        self._iterations = Histogram(
            "app_iteration_duration_seconds",
            "Duration of one iteration of a worker.",
            ["worker", "result"],
            buckets=ITERATION_BUCKETS,
            registry=registry,
        )
        self._signals = Counter("app_signals", "Signals received.", ["signal"], registry=registry)
        self._unavailable = Counter(
            "app_resource_unavailable", "Failed tries to open a resource at start.", ["resource"], registry=registry
        )
        for phase in Phase:
            self._phase.labels(phase.value).set(0)
        self.handlers: Handlers = {
            ev.IterationEnded: self._iteration,
            ev.PhaseChanged: self._enter,
            ev.ReadinessChanged: lambda event: self._ready.set(event.ready),
            ev.WorkerBegan: lambda _: self._workers.inc(),
            ev.WorkerEnded: lambda _: self._workers.dec(),
            ev.WorkerRestarted: lambda event: self._restarts.labels(event.worker).inc(),
            ev.WorkAbandoned: lambda event: self._abandoned.labels(event.worker).inc(event.count),
            ev.RequestsInFlight: lambda event: self._requests.set(event.count),
            ev.SignalReceived: lambda event: self._signals.labels(event.name).inc(),
            ev.ResourceUnavailable: lambda event: self._unavailable.labels(event.resource).inc(),
            ev.PartEnded: lambda event: self._shutdown.labels(event.part.value).observe(event.seconds),
            ev.ShutdownEnded: lambda event: self._shutdown.labels(WHOLE).observe(event.seconds),
        }

    def _iteration(self, event: ev.IterationEnded) -> None:
        self._of(self._iterations, event.worker, "failed" if event.failed else "done").observe(event.seconds)

    def _enter(self, event: ev.PhaseChanged) -> None:
        for phase in Phase:
            self._phase.labels(phase.value).set(phase is event.phase)
