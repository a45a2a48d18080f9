"""A claim that takes along what comes while it waits for the broker."""

import asyncio
from collections.abc import Sequence

import pytest
from growing_outbox import AddingBroker, GrowingStore
from scripted_outbox import Away, doubled, event

from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.events import ClaimSettled, InFlightChanged
from quiesce.outbox.outcome import Retry
from quiesce.relay import Relay
from quiesce.testing import virtual_time
from quiesce.testing.manual_stop import ManualStop


@pytest.mark.parametrize("growing", [False, True])
def test_what_is_in_flight_is_told_before_any_of_it_can_reach_the_broker(growing: bool) -> None:
    async def main() -> None:
        store, broker = GrowingStore(latency=0.0), AddingBroker(latency=0.05)
        relay = Relay(store, broker, poll_interval=0.002)
        stop = ManualStop(relay.name)
        stop.at(10.0, within=4.0)
        short: list[ClaimedEvent] = []

        def handed_over(events: Sequence[ClaimedEvent]) -> None:
            told = stop.told(InFlightChanged)[-1].events
            if told < len(store.claimed()):
                short.extend(events)

        broker.on_publish = handed_over
        for number in range(100):
            store.add(event(number, f"k{number}"), at=1 + (number if growing else 30 * number) * 0.003)
        await relay.run(stop)
        assert not store.waiting()
        assert bool(broker.added) is growing
        assert short == []
        assert stop.told(InFlightChanged)[-1].events == 0

    virtual_time.run(main())


def test_nothing_grows_while_a_refusal_is_being_recorded() -> None:
    async def main() -> None:
        broker = AddingBroker(latency=0.0)

        class SlowToRecord(GrowingStore):
            async def answer(self, what: str) -> None:
                if what != "settle" or self.now() > 2.0:
                    await asyncio.sleep(0.001)
                    return
                # Meanwhile the other call gets no more answers.
                broker.away = Away([(self.now(), 2.0)])
                await asyncio.sleep(0.5)

        store = SlowToRecord()
        relay = Relay(store, broker, poll_interval=0.002, max_claims=4)
        stop = ManualStop(relay.name)
        stop.at(20.0, within=4.0)
        broker.refuse[event(1, "held").id] = [Retry("not now", 5.0)]
        broker.away = Away([(1.0, 1.1)])
        store.add(event(1, "held"), at=1.0)
        store.add(*(event(2 + number, f"k{number}") for number in range(8)), at=1.05)
        store.add(event(200, "held"), at=1.3)
        await relay.run(stop)
        assert not store.waiting()
        assert [one.position for one in broker.log if one.aggregate_id == "held"] == [1, 200]
        assert doubled(broker.log) == 0

    virtual_time.run(main())


def test_an_event_goes_along_with_the_claim_before() -> None:
    async def main() -> None:
        store, broker = GrowingStore(latency=0.0), AddingBroker(latency=0.0)
        relay = Relay(store, broker, poll_interval=0.002)
        stop = ManualStop(relay.name)
        stop.at(5.0, within=4.0)
        broker.away = Away([(1.0, 2.0)])
        for number in range(10):
            store.add(event(number, "k"), at=1 + number * 0.05)
        await relay.run(stop)
        assert [one.position for one in broker.log] == list(range(10))
        assert [one.position for one in broker.added] == list(range(1, 10))
        (settled,) = stop.told(ClaimSettled)
        assert settled.dispatched == 10

    virtual_time.run(main())
