"""Metrics of relays, and of the outbox's tables."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from quiesce.metrics.handlers import Children, Handlers
from quiesce.outbox import events as outbox

PUBLISH_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
WAIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
TAKEOVER_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30, 60, 120)


class RelayMetrics:
    """What relays tell: told thousands of times a second."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._of = Children()
        self._bounds: dict[str, tuple[int, float]] = {}
        self._events = Counter(
            "outbox_events", "Events by what a settle recorded for them.", ["relay", "outcome"], registry=registry
        )
        self._published = Counter(
            "outbox_published_events", "Events that the broker has acked.", ["relay"], registry=registry
        )
        self._publish = Histogram(
            "outbox_publish_duration_seconds",
            "From handing a claim to the broker to its last ack.",
            ["relay"],
            buckets=PUBLISH_BUCKETS,
            registry=registry,
        )
        self._waited = Histogram(
            "outbox_time_in_outbox_seconds",
            "From the beginning of the writer's transaction to the broker's ack. Sampled.",
            ["relay"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._takeover = Histogram(
            "outbox_takeover_seconds",
            "How long lanes that were another relay's had waited for this one.",
            ["relay"],
            buckets=TAKEOVER_BUCKETS,
            registry=registry,
        )
        self._outage = Gauge(
            "outbox_outage", "1 while the relay waits for this server.", ["relay", "what"], registry=registry
        )
        self._discarded = Counter(
            "outbox_producer_discarded", "Producers given up as a whole.", ["relay"], registry=registry
        )
        self._refused = Counter(
            "outbox_refused_events", "Events refused, by the name of the error.", ["relay", "reason"], registry=registry
        )
        self._in_flight = Gauge(
            "outbox_in_flight_events", "Events claimed and not settled.", ["relay"], registry=registry
        )
        self._limit = Gauge(
            "outbox_in_flight_limit_events", "Events that may be in flight.", ["relay"], registry=registry
        )
        self._most = Gauge(
            "outbox_in_flight_most_events", "Events that may be in flight at most.", ["relay"], registry=registry
        )
        self._pace = Gauge(
            "outbox_broker_pace_events_per_second", "What the broker answers, at least.", ["relay"], registry=registry
        )
        self._stop_bound = Gauge(
            "outbox_stop_bound_seconds", "What a stop has for what is in flight.", ["relay"], registry=registry
        )
        self.handlers: Handlers = {
            outbox.ClaimSettled: self._settled,
            outbox.InFlightChanged: self._changed,
            outbox.MarksMissing: lambda event: self._of(self._published, event.relay).inc(event.events),
            outbox.LanesTakenOver: lambda event: self._of(self._takeover, event.relay).observe(event.seconds),
            outbox.OutageBegan: lambda event: self._outage.labels(event.relay, event.what).set(1),
            outbox.OutageEnded: lambda event: self._outage.labels(event.relay, event.what).set(0),
            outbox.ProducerDiscarded: lambda event: self._discarded.labels(event.relay).inc(),
        }

    def _settled(self, event: outbox.ClaimSettled) -> None:
        for outcome in ("dispatched", "retried", "dead", "released"):
            if count := getattr(event, outcome):
                self._of(self._events, event.relay, outcome).inc(count)
        self._of(self._published, event.relay).inc(event.dispatched)
        for reason, count in event.refused.items():
            self._refused.labels(event.relay, reason).inc(count)
        self._of(self._publish, event.relay).observe(event.publish_seconds)
        if event.waited_seconds is not None:
            self._of(self._waited, event.relay).observe(event.waited_seconds)

    def _changed(self, event: outbox.InFlightChanged) -> None:
        relay = event.relay
        self._of(self._in_flight, relay).set(event.events)
        self._of(self._limit, relay).set(event.limit)
        if event.pace is not None:
            self._of(self._pace, relay).set(event.pace)
        bounds = (event.most, event.within)
        if self._bounds.get(relay) != bounds:
            self._bounds[relay] = bounds
            self._most.labels(relay).set(event.most)
            self._stop_bound.labels(relay).set(event.within)
            # They are there before the first one, so that a rise from none to one is seen.
            self._of(self._takeover, relay)
            self._of(self._published, relay)


class OutboxMetrics:
    """What the tables say, as `OutboxWatch` tells."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waiting = Gauge(
            "outbox_waiting_events", "Events that wait; estimated beyond 10,000.", ["outbox"], registry=registry
        )
        self._oldest = Gauge(
            "outbox_oldest_seconds", "How long the oldest event has waited.", ["outbox"], registry=registry
        )
        self._parked = Gauge("outbox_parked_events", "Events set aside.", ["outbox", "state"], registry=registry)
        self._paused = Gauge("outbox_paused", "1 while an operator has paused it.", ["outbox"], registry=registry)
        self._owned_lanes = Gauge(
            "outbox_owned_lanes", "Lanes that a relay owns, of 16. The log store's.", ["outbox"], registry=registry
        )
        self._measured = Gauge(
            "outbox_measured_timestamp_seconds", "When the tables were last looked at.", ["outbox"], registry=registry
        )
        self.handlers: Handlers = {outbox.OutboxMeasured: self._note}

    def _note(self, event: outbox.OutboxMeasured) -> None:
        of = event.outbox
        self._waiting.labels(of).set(event.waiting)
        self._oldest.labels(of).set(event.oldest_seconds)
        for state in ("retry", "held", "dead"):
            self._parked.labels(of, state).set(getattr(event, state))
        self._paused.labels(of).set(event.paused)
        if event.owned_lanes is not None:
            self._owned_lanes.labels(of).set(event.owned_lanes)
        self._measured.labels(of).set_to_current_time()
