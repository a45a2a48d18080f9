"""Metrics for Prometheus, from the service's typed events. One observer; it also answers `/metrics`."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from quiesce.inbox import events as consumed
from quiesce.inbox.events import AssignmentChanged, BatchHandled, CommitLate, PositionReset
from quiesce.lifecycle import events as ev
from quiesce.lifecycle.phases import Phase
from quiesce.outbox import events as outbox

AsgiApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]

SHUTDOWN_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 25, 30, 40, 50, 60)
ITERATION_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

WHOLE = "all"
"""The label `part` of the whole shutdown."""


class PrometheusMetrics:
    """Give it to a service: `@service("orders", observers=[PrometheusMetrics()])`.

    Args:
        registry: where the metrics are registered; the process's own by default.
        path: where they are served by the service's HTTP server.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY, path: str = "/metrics") -> None:
        self._registry = registry
        self._children: dict[tuple[Any, tuple[str, ...]], Any] = {}
        self._bounds: dict[str, tuple[int, float]] = {}
        self.routes: Mapping[str, AsgiApp] = {path: self._serve}
        self.shutdown = Histogram(
            "app_shutdown_duration_seconds",
            "Duration of a shutdown: the whole (part=all) and each part.",
            ["part"],
            buckets=SHUTDOWN_BUCKETS,
            registry=registry,
        )
        self.ready = Gauge("app_ready", "1 while the service is ready for traffic.", registry=registry)
        self.phase = Gauge("app_phase", "1 for the phase the service is in.", ["phase"], registry=registry)
        self.workers = Gauge("app_workers_running", "Workers that have begun and not ended.", registry=registry)
        self.requests = Gauge(
            "app_http_requests_in_flight", "Requests and websockets in the application's hands.", registry=registry
        )
        self.restarts = Counter(
            "app_worker_restarts", "Times that a failed worker began again.", ["worker"], registry=registry
        )
        self.abandoned = Counter(
            "app_abandoned_work", "Work that had begun and was left unfinished.", ["worker"], registry=registry
        )
        self.iterations = Histogram(
            "app_iteration_duration_seconds",
            "Duration of one iteration of a worker.",
            ["worker", "result"],
            buckets=ITERATION_BUCKETS,
            registry=registry,
        )
        self.signals = Counter("app_signals", "Signals received.", ["signal"], registry=registry)
        self.unavailable = Counter(
            "app_resource_unavailable", "Failed tries to open a resource at start.", ["resource"], registry=registry
        )
        self.events = Counter(
            "outbox_events", "Events by what a settle recorded for them.", ["relay", "outcome"], registry=registry
        )
        self.publish = Histogram(
            "outbox_publish_duration_seconds",
            "From handing a claim to the broker to its last ack.",
            ["relay"],
            buckets=ITERATION_BUCKETS,
            registry=registry,
        )
        self.outage = Gauge(
            "outbox_outage", "1 while the relay waits for this server.", ["relay", "what"], registry=registry
        )
        self.discarded = Counter(
            "outbox_producer_discarded", "Producers given up as a whole.", ["relay"], registry=registry
        )
        self.refused = Counter(
            "outbox_refused_events", "Events refused, by the name of the error.", ["relay", "reason"], registry=registry
        )
        self.in_flight = Gauge(
            "outbox_in_flight_events", "Events claimed and not settled.", ["relay"], registry=registry
        )
        self.in_flight_limit = Gauge(
            "outbox_in_flight_limit_events", "Events that may be in flight.", ["relay"], registry=registry
        )
        self.in_flight_most = Gauge(
            "outbox_in_flight_most_events", "Events that may be in flight at most.", ["relay"], registry=registry
        )
        self.pace = Gauge(
            "outbox_broker_pace_events_per_second", "What the broker answers, at least.", ["relay"], registry=registry
        )
        self.stop_bound = Gauge(
            "outbox_stop_bound_seconds", "What a stop has for what is in flight.", ["relay"], registry=registry
        )
        self.waiting = Gauge(
            "outbox_waiting_events", "Events that wait; estimated beyond 10,000.", ["outbox"], registry=registry
        )
        self.oldest = Gauge(
            "outbox_oldest_seconds", "How long the oldest event has waited.", ["outbox"], registry=registry
        )
        self.parked = Gauge("outbox_parked_events", "Events set aside.", ["outbox", "state"], registry=registry)
        self.paused = Gauge("outbox_paused", "1 while an operator has paused it.", ["outbox"], registry=registry)
        self.owned_lanes = Gauge(
            "outbox_owned_lanes", "Lanes that a relay owns, of 16. The log store's.", ["outbox"], registry=registry
        )
        self.measured = Gauge(
            "outbox_measured_timestamp_seconds", "When the tables were last looked at.", ["outbox"], registry=registry
        )
        self.records = Counter("consumer_records", "Records handled and committed.", ["consumer"], registry=registry)
        self.late = Counter(
            "consumer_commit_late_records",
            "Records whose assignment was over when they ended.",
            ["consumer"],
            registry=registry,
        )
        self.partitions = Gauge("consumer_partitions", "Partitions assigned now.", ["consumer"], registry=registry)
        self.assignment = Gauge(
            "consumer_assignment", "The number of the assignment: it grows.", ["consumer"], registry=registry
        )
        self.lost = Counter(
            "consumer_assignments_lost",
            "Times that the group had gone on without this member.",
            ["consumer"],
            registry=registry,
        )
        self.resets = Counter(
            "consumer_position_resets",
            "Partitions that are read from elsewhere than the group had got to.",
            ["consumer", "topic", "reason"],
            registry=registry,
        )
        self.failures = Counter(
            "consumer_handler_failures",
            "Handlers that raised: an attempt, or an outage, which is none.",
            ["consumer", "topic", "kind"],
            registry=registry,
        )
        self.set_aside = Counter(
            "consumer_set_aside_records", "Records given up.", ["consumer", "topic", "reason"], registry=registry
        )
        self.skipped = Counter(
            "consumer_skipped_records", "Bad input passed over.", ["consumer", "topic", "reason"], registry=registry
        )
        self.duplicates = Counter(
            "consumer_duplicate_records", "Records that an inbox knew.", ["consumer"], registry=registry
        )
        self.postponed = Counter(
            "consumer_postponed_records", "Records put off to a topic.", ["consumer", "topic"], registry=registry
        )
        self.window = Gauge(
            "consumer_window_records", "Records in hand, by what of them.", ["consumer", "what"], registry=registry
        )
        self.waiting_keys = Gauge(
            "consumer_waiting_keys", "Keys that wait for a next try.", ["consumer"], registry=registry
        )
        for phase in Phase:
            self.phase.labels(phase.value).set(0)

    def _of(self, metric: Any, *labels: str) -> Any:
        """The child with these labels, found faster than the metric would."""
        child = self._children.get((metric, labels))
        if child is None:
            child = self._children[metric, labels] = metric.labels(*labels)
        return child

    def observe(self, event: ev.Event) -> None:
        match event:
            case ev.IterationEnded(worker=worker, seconds=seconds, failed=failed):
                self._of(self.iterations, worker, "failed" if failed else "done").observe(seconds)
            case outbox.ClaimSettled():
                for outcome in ("dispatched", "retried", "dead", "released"):
                    if count := getattr(event, outcome):
                        self._of(self.events, event.relay, outcome).inc(count)
                for reason, count in event.refused.items():
                    self.refused.labels(event.relay, reason).inc(count)
                self._of(self.publish, event.relay).observe(event.publish_seconds)
            case outbox.InFlightChanged(relay=relay):
                self._of(self.in_flight, relay).set(event.events)
                self._of(self.in_flight_limit, relay).set(event.limit)
                if event.pace is not None:
                    self._of(self.pace, relay).set(event.pace)
                bounds = (event.most, event.within)
                if self._bounds.get(relay) != bounds:
                    self._bounds[relay] = bounds
                    self.in_flight_most.labels(relay).set(event.most)
                    self.stop_bound.labels(relay).set(event.within)
            case BatchHandled(consumer=consumer, records=records):
                self.records.labels(consumer).inc(records)
            case CommitLate(consumer=consumer, records=records):
                self.late.labels(consumer).inc(records)
            case AssignmentChanged(consumer=consumer, partitions=partitions, assignment=number, lost=lost):
                self.partitions.labels(consumer).set(partitions)
                self.assignment.labels(consumer).set(number)
                self.lost.labels(consumer).inc(lost)
            case PositionReset(consumer=consumer, topic=topic, from_offset=origin):
                self.resets.labels(consumer, topic, "no_offset" if origin is None else "out_of_range").inc()
            case consumed.HandlerFailed(consumer=consumer, topic=topic, outage=outage):
                self.failures.labels(consumer, topic, "outage" if outage else "attempt").inc()
            case consumed.RecordSetAside(consumer=consumer, topic=topic, reason=reason):
                self.set_aside.labels(consumer, topic, reason).inc()
            case consumed.RecordSkipped(consumer=consumer, topic=topic, reason=reason):
                self.skipped.labels(consumer, topic, reason).inc()
            case consumed.DuplicatesAnswered(consumer=consumer, records=records):
                self.duplicates.labels(consumer).inc(records)
            case consumed.RecordPostponed(consumer=consumer, topic=topic):
                self.postponed.labels(consumer, topic).inc()
            case consumed.WindowMeasured(consumer=consumer, left=left, waiting_keys=keys, ahead=ahead):
                self.window.labels(consumer, "left").set(left)
                self.window.labels(consumer, "ahead").set(ahead)
                self.waiting_keys.labels(consumer).set(keys)
            case outbox.OutageBegan(relay=relay, what=what):
                self.outage.labels(relay, what).set(1)
            case outbox.OutageEnded(relay=relay, what=what):
                self.outage.labels(relay, what).set(0)
            case outbox.ProducerDiscarded(relay=relay):
                self.discarded.labels(relay).inc()
            case outbox.OutboxMeasured(outbox=of):
                self.waiting.labels(of).set(event.waiting)
                self.oldest.labels(of).set(event.oldest_seconds)
                for state in ("retry", "held", "dead"):
                    self.parked.labels(of, state).set(getattr(event, state))
                self.paused.labels(of).set(event.paused)
                if event.owned_lanes is not None:
                    self.owned_lanes.labels(of).set(event.owned_lanes)
                self.measured.labels(of).set_to_current_time()
            case ev.PhaseChanged(phase=now):
                for phase in Phase:
                    self.phase.labels(phase.value).set(phase is now)
            case ev.ReadinessChanged(ready=ready):
                self.ready.set(ready)
            case ev.WorkerBegan():
                self.workers.inc()
            case ev.WorkerEnded():
                self.workers.dec()
            case ev.WorkerRestarted(worker=worker):
                self.restarts.labels(worker).inc()
            case ev.WorkAbandoned(worker=worker, count=count):
                self.abandoned.labels(worker).inc(count)
            case ev.RequestsInFlight(count=count):
                self.requests.set(count)
            case ev.SignalReceived(name=name):
                self.signals.labels(name).inc()
            case ev.ResourceUnavailable(resource=resource):
                self.unavailable.labels(resource).inc()
            case ev.PartEnded(part=part, seconds=seconds):
                self.shutdown.labels(part.value).observe(seconds)
            case ev.ShutdownEnded(seconds=seconds):
                self.shutdown.labels(WHOLE).observe(seconds)
            case _:
                pass

    async def _serve(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        accept = next((value.decode() for name, value in scope["headers"] if name == b"accept"), "")
        encode, content_type = choose_encoder(accept)
        body = encode(self._registry)
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
