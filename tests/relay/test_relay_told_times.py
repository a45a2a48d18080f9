"""What the relay tells of times that its store has measured."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from scripted_outbox import MemoryBroker, MemoryClaim, MemoryStore, event

from quiesce.errors import Unavailable
from quiesce.lifecycle.events import Event
from quiesce.metrics import PrometheusMetrics
from quiesce.outbox.events import ClaimSettled, InFlightChanged, LanesTakenOver
from quiesce.outbox.outcome import Outcome
from quiesce.outbox.ports import Settled, Takeover
from quiesce.relay import Relay
from quiesce.testing import virtual_time
from quiesce.testing.manual_stop import ManualStop

WAITED, SETTLE_TAKES = 5.0, 0.5


class SlowClaim(MemoryClaim):
    """Its settle takes long, and says at its end how long the first event has been there."""

    async def settle(self, outcomes: Mapping[UUID, Outcome]) -> Settled:
        settled = await super().settle(outcomes)
        await asyncio.sleep(SETTLE_TAKES)
        return replace(settled, waited=WAITED)


class TellingStore(MemoryStore):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.taken = [Takeover(16, 0.25), Takeover(2, 7.0)]

    async def claim(self, limit: int) -> MemoryClaim:
        claim = await super().claim(limit)
        return SlowClaim(self, claim._rows)

    def takeovers(self) -> Sequence[Takeover]:
        told, self.taken = self.taken, []
        return told


async def told() -> list[Event]:
    store, broker = TellingStore(Random(1)), MemoryBroker(Random(2))
    store.add(*(event(position) for position in range(3)))
    stop = ManualStop("orders")
    stop.at(asyncio.get_running_loop().time() + 3.0, within=4.0)
    await Relay(store, broker, name="orders").run(stop)
    return stop.events


def test_the_time_in_the_outbox_ends_with_the_ack_and_not_with_its_mark() -> None:
    (settled,) = [told for told in virtual_time.run(told()) if isinstance(told, ClaimSettled)]
    # The settle itself has a little latency of its own.
    assert settled.waited_seconds == pytest.approx(WAITED - SETTLE_TAKES, abs=0.01)


def test_what_a_store_took_over_is_told_once() -> None:
    taken = [told for told in virtual_time.run(told()) if isinstance(told, LanesTakenOver)]
    assert taken == [LanesTakenOver("orders", 16, 0.25), LanesTakenOver("orders", 2, 7.0)]


def test_both_are_metrics() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"relay": "orders", **labels})

    metrics.observe(InFlightChanged("orders", 1, 1000, 1000, None, 20.0))
    # A rise from nothing at all is seen by nobody who compares.
    assert value("outbox_takeover_seconds_count") == 0
    for told_event in virtual_time.run(told()):
        metrics.observe(told_event)
    assert value("outbox_takeover_seconds_count") == 2
    assert value("outbox_takeover_seconds_bucket", le="5.0") == 1
    assert value("outbox_published_events_total") == 3
    assert value("outbox_time_in_outbox_seconds_count") == 1
    assert value("outbox_time_in_outbox_seconds_sum") == pytest.approx(WAITED - SETTLE_TAKES, abs=0.01)
    metrics.observe(ClaimSettled("orders", 1, 0, 0, 0, 0.01, 0.02))
    assert value("outbox_time_in_outbox_seconds_count") == 1


def test_what_was_acked_and_not_recorded_counts_as_published_and_comes_again() -> None:
    async def main() -> list[Event]:
        store, broker = MemoryStore(Random(1)), MemoryBroker(Random(2))
        store.add(*(event(position) for position in range(3)))
        store.faults["settle"] = [Unavailable("connection reset")]
        stop = ManualStop("orders")
        stop.at(asyncio.get_running_loop().time() + 3.0, within=4.0)
        await Relay(store, broker, name="orders").run(stop)
        return stop.events

    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    for told_event in virtual_time.run(main()):
        metrics.observe(told_event)
    dispatched = {"relay": "orders", "outcome": "dispatched"}
    assert registry.get_sample_value("outbox_published_events_total", {"relay": "orders"}) == 6
    assert registry.get_sample_value("outbox_events_total", dispatched) == 3
