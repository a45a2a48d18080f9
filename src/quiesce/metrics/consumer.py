"""Metrics of consumers."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from quiesce.inbox import events as inbox
from quiesce.metrics.handlers import Handlers


class ConsumerMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._records = Counter("consumer_records", "Records handled and committed.", ["consumer"], registry=registry)
        self._late = Counter(
            "consumer_commit_late_records",
            "Records whose assignment was over when they ended.",
            ["consumer"],
            registry=registry,
        )
        self._partitions = Gauge("consumer_partitions", "Partitions assigned now.", ["consumer"], registry=registry)
        self._assignment = Gauge(
            "consumer_assignment", "The number of the assignment: it grows.", ["consumer"], registry=registry
        )
        self._lost = Counter(
            "consumer_assignments_lost",
            "Times that the group had gone on without this member.",
            ["consumer"],
            registry=registry,
        )
        self._resets = Counter(
            "consumer_position_resets",
            "Partitions that are read from elsewhere than the group had got to.",
            ["consumer", "topic", "reason"],
            registry=registry,
        )
        self._failures = Counter(
            "consumer_handler_failures",
            "Handlers that raised: an attempt, or an outage, which is none.",
            ["consumer", "topic", "kind"],
            registry=registry,
        )
        self._set_aside = Counter(
            "consumer_set_aside_records", "Records given up.", ["consumer", "topic", "reason"], registry=registry
        )
        self._skipped = Counter(
            "consumer_skipped_records", "Bad input passed over.", ["consumer", "topic", "reason"], registry=registry
        )
        self._duplicates = Counter(
            "consumer_duplicate_records", "Records that an inbox knew.", ["consumer"], registry=registry
        )
        self._postponed = Counter(
            "consumer_postponed_records", "Records put off to a topic.", ["consumer", "topic"], registry=registry
        )
        self._window = Gauge(
            "consumer_window_records", "Records in hand, by what of them.", ["consumer", "what"], registry=registry
        )
        self._waiting_keys = Gauge(
            "consumer_waiting_keys", "Keys that wait for a next try.", ["consumer"], registry=registry
        )
        self.handlers: Handlers = {
            inbox.BatchHandled: lambda event: self._records.labels(event.consumer).inc(event.records),
            inbox.CommitLate: lambda event: self._late.labels(event.consumer).inc(event.records),
            inbox.AssignmentChanged: self._assigned,
            inbox.PositionReset: self._reset,
            inbox.HandlerFailed: self._failed,
            inbox.RecordSetAside: lambda event: self._set_aside.labels(event.consumer, event.topic, event.reason).inc(),
            inbox.RecordSkipped: lambda event: self._skipped.labels(event.consumer, event.topic, event.reason).inc(),
            inbox.DuplicatesAnswered: lambda event: self._duplicates.labels(event.consumer).inc(event.records),
            inbox.RecordPostponed: lambda event: self._postponed.labels(event.consumer, event.topic).inc(),
            inbox.WindowMeasured: self._measured,
        }

    def _assigned(self, event: inbox.AssignmentChanged) -> None:
        self._partitions.labels(event.consumer).set(event.partitions)
        self._assignment.labels(event.consumer).set(event.assignment)
        self._lost.labels(event.consumer).inc(event.lost)

    def _reset(self, event: inbox.PositionReset) -> None:
        reason = "no_offset" if event.from_offset is None else "out_of_range"
        self._resets.labels(event.consumer, event.topic, reason).inc()

    def _failed(self, event: inbox.HandlerFailed) -> None:
        self._failures.labels(event.consumer, event.topic, "outage" if event.outage else "attempt").inc()

    def _measured(self, event: inbox.WindowMeasured) -> None:
        self._window.labels(event.consumer, "left").set(event.left)
        self._window.labels(event.consumer, "ahead").set(event.ahead)
        self._waiting_keys.labels(event.consumer).set(event.waiting_keys)
