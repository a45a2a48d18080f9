"""What `doctor` makes of the figures that relays serve with their metrics."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from quiesce.metrics import PrometheusMetrics
from quiesce.outbox.events import InFlightChanged, OutageBegan, OutageEnded
from quiesce.outbox.relay_checks import figures, relay_check


def served(*events: object) -> dict[str, dict[str, float]]:
    """What is read of a page of metrics after these events."""
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    for event in events:
        metrics.observe(event)  # type: ignore[arg-type]  # each is an event
    return figures(generate_latest(registry).decode())


@pytest.mark.parametrize(
    ("limit", "pace", "verdict", "found"),
    [
        (10, None, "ok", "no answer of the broker is measured yet"),
        (1000, 5000.0, "ok", "at most 1,000 of 1,000; the broker answers 5,000 a second at least, and a stop has 10 s"),
        (500, 90.0, "ok", "at most 500 of 1,000"),
        (480, 80.0, "warn", "fewer are sent at once, so that a stop can finish them"),
        (10, 0.9, "bad", "too short even for so few"),
    ],
)
def test_the_bound_of_a_stop_is_held_against_the_measured_pace(
    limit: int, pace: float | None, verdict: str, found: str
) -> None:
    ((name, told),) = served(InFlightChanged("relay", 7, limit, 1000, pace, 10.0)).items()
    check = relay_check(name, told)
    assert (check.name, check.verdict, bool(check.advice)) == ("relay relay", verdict, verdict != "ok")
    assert check.found.startswith("7 events in flight, at most ")
    assert found in check.found


def test_a_relay_that_waits_for_a_server_is_told_first() -> None:
    changed = InFlightChanged("relay", 0, 1000, 1000, 5000.0, 10.0)
    away = served(changed, OutageBegan("relay", "broker"))["relay"]
    assert (relay_check("relay", away).verdict, relay_check("relay", away).found) == ("bad", "waits for the broker")
    back = served(changed, OutageBegan("relay", "broker"), OutageEnded("relay", "broker", 3.0))["relay"]
    assert relay_check("relay", back).verdict == "ok"


def test_each_relay_has_its_own_figures_whatever_its_name() -> None:
    names = ("orders", 'with "quotes", \\ and } and\nlines')
    told = served(*(InFlightChanged(name, n, 1000, 1000, 50.0, 10.0) for n, name in enumerate(names)))
    assert {name: one["outbox_in_flight_events"] for name, one in told.items()} == dict(zip(names, (0, 1), strict=True))


def test_a_page_without_a_relay_has_none() -> None:
    assert served(OutageBegan("relay", "broker")) == {}
    assert figures("<html>not a page of metrics</html>") == {}
