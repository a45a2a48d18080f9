"""A claim that takes along what comes while it waits for the broker."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from growing_outbox import AddingBroker, GrowingStore
from scripted_outbox import Away, doubled, event, out_of_order
from watched_outbox import WatchedStore

from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.events import ClaimSettled, InFlightChanged
from quiesce.outbox.outcome import Retry
from quiesce.relay import Relay
from quiesce.relay.running import MAX_FAULTS
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


@pytest.mark.parametrize(("kind", "most"), [(WatchedStore, 100), (GrowingStore, 100), (WatchedStore, 1)])
def test_a_broker_that_is_silent_from_the_first_event_of_a_trickle_on_is_noticed_when_its_time_is_over(
    kind: type[WatchedStore], most: int
) -> None:
    """The run waits for the watch meanwhile, or for room, and for longer."""

    class Noticed(AddingBroker):
        async def discard(self, deadline: Deadline) -> int:
            at.append(self.now())
            return await super().discard(deadline)

    at: list[float] = []

    async def main() -> None:
        store, broker = kind(latency=0.0), Noticed(latency=0.0, away=Away([(7.3, 9.0)]))
        store.add(event(1), at=7.3)
        stop = ManualStop("relay")
        stop.at(20.0, within=4.0)
        await Relay(store, broker, poll_interval=0.002, publish_bound=0.4, batch=most, max_in_flight=most).run(stop)
        assert not store.waiting()

    virtual_time.run(main())
    assert at[0] == pytest.approx(7.7, abs=0.02)


@pytest.mark.parametrize("where", ["claim", "takes", "add"])
def test_a_fault_while_what_a_watch_has_found_is_claimed_is_one_of_the_relay_and_loses_nothing(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(AddingBroker):
        def takes(self, events: Sequence[ClaimedEvent], more: Sequence[ClaimedEvent]) -> bool:
            if where == "takes" and not faulty:
                faulty.append(True)
                raise RuntimeError("a bug")
            return super().takes(events, more)

        def add(self, events: Sequence[ClaimedEvent], known: int) -> None:
            if where == "add" and not faulty:
                faulty.append(True)
                raise RuntimeError("a bug")
            super().add(events, known)

    faulty: list[bool] = []

    async def main() -> None:
        store, broker = GrowingStore(latency=0.0), Faulty(latency=0.05)
        if where == "claim":
            store.faults["at once"] = [RuntimeError("a bug")]
        for number in range(40):
            store.add(event(number, f"k{number % 3}"), at=1 + number * 0.004)
        stop = ManualStop("relay")
        stop.at(20.0, within=4.0)
        await Relay(store, broker, poll_interval=0.002).run(stop)
        assert not store.waiting()
        assert not store.claimed()
        assert not store.faults.get("at once")
        assert {one.id for one in broker.log} == {event(number).id for number in range(40)}
        assert out_of_order(broker.log) == []

    with caplog.at_level(logging.WARNING):
        virtual_time.run(main())
    told = [record.message for record in caplog.records]
    assert len([line for line in told if "unexpected error (1 in a row)" in line]) == 1
    assert not [line for line in told if "watching it failed" in line]


def test_what_was_settled_before_an_error_forgives_none_that_come_after() -> None:
    """Both are seen in one look, since what is settled in the meantime wakes nobody."""

    async def main() -> int:
        store, broker = GrowingStore(latency=0.0), AddingBroker(latency=0.0)
        tries = 0

        def never(events: Sequence[ClaimedEvent]) -> None:
            nonlocal tries
            if events[0].aggregate_id == "ill":
                tries += 1
                raise ZeroDivisionError

        broker.on_publish = never
        store.add(event(1, "well"), at=1.3)
        store.add(event(2, "ill"), at=1.5)
        stop = ManualStop("relay")
        stop.at(600.0, within=4.0)
        with pytest.raises(ZeroDivisionError):
            await Relay(store, broker, poll_interval=0.002).run(stop)
        assert store.dispatched() == {event(1).id}
        return tries

    assert virtual_time.run(main()) == MAX_FAULTS
