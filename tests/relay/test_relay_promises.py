"""What the outbox promises, on scripted stores and brokers in virtual time: thousands of whole lives of a relay."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import pytest
from growing_outbox import AddingBroker, GrowingStore
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_outbox import Away, MemoryBroker, MemoryStore, doubled, event, out_of_order
from watched_outbox import WatchedStore

from quiesce.lifecycle.events import IterationEnded
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.events import ClaimSettled, OutageBegan, OutageEnded, ProducerDiscarded
from quiesce.relay import Relay
from quiesce.testing import virtual_time
from quiesce.testing.manual_stop import ManualStop

WITHIN = 4.0


@dataclass
class Life:
    """One relay from its start to its stop, on this store and this broker."""

    store: MemoryStore
    broker: MemoryBroker
    batch: int = 5
    max_in_flight: int = 10
    max_claims: int = 2
    publish_bound: float = 1.0
    store_bound: float = 1.0
    within: float = WITHIN

    def relay(self) -> Relay:
        return Relay(
            self.store,
            self.broker,
            batch=self.batch,
            max_in_flight=self.max_in_flight,
            max_claims=self.max_claims,
            publish_bound=self.publish_bound,
            store_bound=self.store_bound,
        )

    async def live(self, until: Callable[[ManualStop], object]) -> ManualStop:
        """Runs until what `until` has set off stops it. Checks what holds for every life."""
        stop = ManualStop("relay")
        self.store.stop = stop
        self.broker.on_publish = self._published
        until(stop)
        await self.relay().run(stop)
        loop = asyncio.get_running_loop()
        assert stop.requested
        assert stop.deadline.at == float("inf") or loop.time() <= stop.deadline.at, "it outlived its bound"
        assert stop.in_hand() == [], "an iteration was not ended"
        assert not self.store.begun_after_stop, "a claim began after the stop"
        return stop

    def _published(self, events: Sequence[ClaimedEvent]) -> None:
        again = {e.id for e in events} & self.store.dispatched()
        assert not again, "an event of a settled claim was published again"

    async def drain_outbox(self) -> None:
        """A later relay, with nothing in its way, moves what was left."""
        self.store.away, self.broker.away = Away(), Away()
        self.store.lose_claims, self.store.hangs, self.broker.discard_hangs = 0.0, False, False

        def when_empty(stop: ManualStop) -> None:
            def look() -> None:
                if self.store.waiting():
                    asyncio.get_running_loop().call_later(0.5, look)
                else:
                    stop.now(within=WITHIN)

            look()

        await self.live(when_empty)

    def check(self, *, in_order: bool = True) -> None:
        """Nothing is claimed for ever, marked without an ack, lost, or out of order."""
        assert self.store.claimed() == [], "events stay claimed"
        assert self.store.open_claims == 0
        assert self.store.dispatched() <= self.broker.acked, "an event is marked that the broker never acked"
        assert self.store.most_open_claims <= self.max_claims
        assert self.store.most_in_hand <= self.max_in_flight
        if in_order:
            assert out_of_order(self.broker.log) == []

    def check_delivered(self) -> None:
        assert {e.id for e in self.broker.log} | self.store.dead() == {row.event.id for row in self.store.rows}


def stretches(until: float) -> st.SearchStrategy[Away]:
    instants = st.floats(0, until, allow_nan=False)
    pairs = st.tuples(instants, instants).map(lambda p: (min(p), max(p)))
    return st.lists(pairs, max_size=2).map(Away)


def broker_of(kind: "Kind") -> type[MemoryBroker]:
    """The one that a store of this kind gets most out of."""
    return AddingBroker if kind is GrowingStore else MemoryBroker


@st.composite
def lives(draw: st.DrawFn) -> Life:
    random = Random(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from([MemoryStore, WatchedStore, GrowingStore]))
    store = kind(random, hangs=draw(st.booleans()), away=draw(stretches(8)))
    store.lose_claims = draw(st.sampled_from([0.0, 0.0, 0.3]))
    broker = broker_of(kind)(random, away=draw(stretches(8)), discard_hangs=draw(st.sampled_from([False, False, True])))
    count = draw(st.integers(1, 60))
    instants = sorted(draw(st.lists(st.floats(0, 4, allow_nan=False), min_size=count, max_size=count)))
    for position, at in enumerate(instants):
        store.add(event(position, f"k{draw(st.integers(0, 4))}"), at=at)
    return Life(
        store,
        broker,
        batch=draw(st.integers(1, 8)),
        max_in_flight=draw(st.integers(1, 12)),
        max_claims=draw(st.integers(1, 3)),
        within=draw(st.sampled_from([0.5, 1.0, 4.0, 20.0])),
    )


@given(lives(), st.floats(0, 6, allow_nan=False))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_fails_nothing_is_lost_and_order_holds(life: Life, stop_at: float) -> None:
    async def main() -> None:
        stop = await life.live(lambda stop: stop.at(stop_at, within=life.within))
        # With a discard that hangs the messages may arrive later: that is said, and not judged here.
        if not life.broker.discard_hangs:
            life.check()
        left = sum(count for _, count in stop.abandoned)
        assert left <= life.max_in_flight
        await life.drain_outbox()
        life.check(in_order=not life.broker.discards or not life.broker.discard_hangs)
        life.check_delivered()

    virtual_time.run(main())


@given(lives(), st.floats(0, 6, allow_nan=False))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_cancelled_at_any_time_it_marks_nothing_that_was_not_acked(life: Life, cancel_at: float) -> None:
    async def main() -> None:
        stop = ManualStop("relay")
        life.store.stop = stop
        task = asyncio.create_task(life.relay().run(stop))
        await asyncio.wait({task}, timeout=cancel_at)
        task.cancel("abort")
        began = asyncio.get_running_loop().time()
        await asyncio.wait({task})
        assert task.cancelled()
        assert asyncio.get_running_loop().time() - began <= 1.0
        assert stop.in_hand() == []
        if not life.broker.discard_hangs:
            life.check()
        await life.drain_outbox()
        life.check_delivered()

    virtual_time.run(main())


Kind = type[MemoryStore]
KINDS = pytest.mark.parametrize("kind", [MemoryStore, WatchedStore, GrowingStore])


def steady(kind: Kind = MemoryStore, *, publish_bound: float = 1.0, store_bound: float = 1.0) -> Life:
    """A life without faults: some events there, some coming in the middle."""
    count = 40
    store, broker = kind(Random(1)), broker_of(kind)(Random(2))
    for position in range(count):
        store.add(event(position, f"k{position % 7}"), at=0.0 if position < count // 2 else position / 1000)
    return Life(store, broker, publish_bound=publish_bound, store_bound=store_bound)


def turns_of_a_whole_life(kind: Kind) -> int:
    async def main() -> int:
        life = steady(kind)
        await life.live(lambda stop: stop.at(0.3))
        assert not life.store.waiting()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, virtual_time.VirtualLoop)
        return loop.turns

    return virtual_time.run(main())


@KINDS
def test_O15_stopped_at_every_await_it_makes_no_duplicate_and_leaves_nothing(kind: Kind) -> None:
    turns = turns_of_a_whole_life(kind)
    assert turns > 100
    for turn in range(1, turns + 1):

        async def main(turn: int = turn) -> None:
            life = steady(kind)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, virtual_time.VirtualLoop)

            def stop_at_that_turn(stop: ManualStop) -> None:
                loop.at_turn(turn, stop.now)
                stop.at(0.3)

            stop = await life.live(stop_at_that_turn)
            assert stop.abandoned == []
            life.check()
            assert life.store.dispatched() == life.broker.acked, "acked and not marked before the exit"
            await life.drain_outbox()
            life.check()
            life.check_delivered()
            assert doubled(life.broker.log) == 0

        virtual_time.run(main())


@KINDS
def test_cancelled_at_every_await_it_frees_every_claim(kind: Kind) -> None:
    for turn in range(2, turns_of_a_whole_life(kind) + 1):

        async def main(turn: int = turn) -> None:
            life = steady(kind)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, virtual_time.VirtualLoop)
            stop = ManualStop("relay")
            task = asyncio.create_task(life.relay().run(stop))
            loop.at_turn(turn, task.cancel)
            await asyncio.wait({task}, timeout=2.0)
            assert task.cancelled()
            life.check()
            await life.drain_outbox()
            life.check()
            life.check_delivered()
            assert doubled(life.broker.log) <= life.max_in_flight

        virtual_time.run(main())


def test_cancelled_twice_it_still_leaves_no_task_and_no_claim() -> None:
    for gap in range(1, 30):

        async def main(gap: int = gap) -> None:
            life = steady()
            life.broker.away = Away([(0.01, 100.0)])
            loop = asyncio.get_running_loop()
            assert isinstance(loop, virtual_time.VirtualLoop)
            task = asyncio.create_task(life.relay().run(ManualStop("relay")))
            await asyncio.sleep(0.05)
            task.cancel()
            loop.at_turn(loop.turns + gap, task.cancel)
            await asyncio.wait({task}, timeout=2.0)
            assert task.cancelled()
            assert life.store.claimed() == []

        virtual_time.run(main())


@pytest.mark.parametrize("hangs", [True, False])
def test_O8_a_broker_outage_pauses_claiming_burns_no_attempts_and_ends_by_itself(hangs: bool) -> None:
    async def main() -> None:
        life = steady()
        life.broker.away = Away([(0.005, 30.0)])
        life.broker.latency = 0.001
        stop = await life.live(lambda stop: stop.at(60.0))
        life.check()
        life.check_delivered()
        assert not life.store.waiting()
        assert all(row.event.attempts == 0 for row in life.store.rows)
        (began,), (ended,) = stop.told(OutageBegan), stop.told(OutageEnded)
        assert began.what == ended.what == "broker"
        assert 28.0 < ended.seconds < 34.0
        assert stop.told(ProducerDiscarded)[0].messages > 0
        # While it lasted, nothing was claimed.
        assert not [at for at, _ in life.store.claims if 2.0 < at < 30.0]
        assert doubled(life.broker.log) <= life.max_in_flight

    virtual_time.run(main())


@pytest.mark.parametrize("hangs", [True, False])
def test_a_database_outage_never_ends_the_relay(hangs: bool) -> None:
    async def main() -> None:
        life = steady()
        life.store.hangs = hangs
        life.store.away = Away([(0.004, 30.0)])
        stop = await life.live(lambda stop: stop.at(60.0))
        life.check()
        life.check_delivered()
        assert not [ended for ended in stop.told(IterationEnded) if ended.failed], "an outage is no fault"
        assert [event.what for event in stop.told(OutageBegan)] == ["database"]
        assert [event.what for event in stop.told(OutageEnded)] == ["database"]

    virtual_time.run(main())


def test_O11_with_the_broker_gone_it_ends_inside_its_bound_and_says_what_it_left() -> None:
    async def main() -> None:
        life = steady(publish_bound=100)
        life.broker.away = Away([(0.003, 1000.0)])
        stop = await life.live(lambda stop: stop.at(1.0, within=4.0))
        life.check()
        # It gives up 15 % before the deadline: not earlier than it has to, and in time to do it in order.
        assert 4.4 < asyncio.get_running_loop().time() < 4.9
        assert stop.abandoned == [("events published without an answer", 10)]

    virtual_time.run(main())


def test_with_the_database_hung_it_ends_inside_its_bound() -> None:
    async def main() -> None:
        life = steady(store_bound=100)
        life.store.hangs = True
        life.store.away = Away([(0.02, 1000.0)])
        stop = await life.live(lambda stop: stop.at(1.0, within=4.0))
        assert asyncio.get_running_loop().time() <= 5.0
        assert stop.told(ClaimSettled) or stop.abandoned

    virtual_time.run(main())
