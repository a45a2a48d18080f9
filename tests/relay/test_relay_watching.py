"""A relay whose store waits by itself for something to claim."""

import asyncio
import logging
from itertools import pairwise

import pytest
from scripted_outbox import Away, MemoryBroker, event
from watched_outbox import WatchedStore

from quiesce.errors import SettingsError, Unavailable
from quiesce.relay import Relay
from quiesce.relay.watching import AT_MOST, IDLE_EVERY, MOST_GATHERED, gather
from quiesce.testing import virtual_time
from quiesce.testing.manual_stop import ManualStop


async def run(relay: Relay, stop_at: float, within: float = 4.0) -> ManualStop:
    stop = ManualStop(relay.name)
    stop.at(asyncio.get_running_loop().time() + stop_at, within=within)
    await relay.run(stop)
    return stop


def test_it_claims_when_the_store_says_so_and_seldom_else() -> None:
    async def main() -> None:
        store, broker = WatchedStore(latency=0.0), MemoryBroker(latency=0.0)
        published: list[float] = []
        broker.on_publish = lambda events: published.append(store.now())
        for second in range(10, 20):
            store.add(event(second, f"k{second}"), at=second + 0.5)
        await run(Relay(store, broker, poll_interval=0.002), stop_at=60.0)
        assert published == pytest.approx([second + 0.5 for second in range(10, 20)], abs=2 * IDLE_EVERY)
        assert len(store.claims) < 60 / AT_MOST + 30
        # Quick while events come, slow once they have not for a while.
        assert {every for _, every in store.watched} == {0.001, IDLE_EVERY}

    virtual_time.run(main())


def test_events_that_keep_coming_are_gathered_for_a_poll_interval() -> None:
    async def main() -> None:
        store, broker = WatchedStore(latency=0.0), MemoryBroker(latency=0.0)
        store.add(*(event(number, f"k{number}", 0) for number in range(10)))
        for number in range(10, 2010):
            store.add(event(number, f"k{number}"), at=1 + number / 2000)
        await run(Relay(store, broker, poll_interval=0.01, max_claims=4), stop_at=4.0)
        assert not store.waiting()
        busy = [at for at, _ in store.claims if 1.1 < at < 1.9]
        assert min(after - before for before, after in pairwise(busy)) >= 0.01 - 1e-6

    virtual_time.run(main())


def test_the_more_come_at_once_the_longer_they_are_gathered() -> None:
    assert [gather(found) for found in (0, 1, 2, 3, 4, 100)] == [1.0, 1.0, 1.0, 2.0, MOST_GATHERED, MOST_GATHERED]


def test_a_nudge_claims_at_once_whatever_is_watched() -> None:
    async def main() -> None:
        store, broker = WatchedStore(latency=0.0), MemoryBroker(latency=0.0)
        relay = Relay(store, broker)
        loop, published = asyncio.get_running_loop(), list[float]()
        broker.on_publish = lambda events: published.append(loop.time())

        def write() -> None:
            store.add(event(1), at=loop.time())
            relay.nudge()

        # Between two looks of an idle store.
        loop.call_at(20.0012, write)
        await run(relay, stop_at=30.0)
        assert published == [20.0012]

    virtual_time.run(main())


def test_while_events_come_a_nudge_costs_no_claim_of_its_own() -> None:
    async def main(nudged: bool) -> tuple[int, float]:
        store, broker = WatchedStore(latency=0.0), MemoryBroker(latency=0.0)
        relay = Relay(store, broker, poll_interval=0.004)
        loop, written, late = asyncio.get_running_loop(), dict[str, float](), list[float]()
        broker.on_publish = lambda events: late.extend(loop.time() - written[one.aggregate_id] for one in events)

        def write(number: int) -> None:
            written[f"k{number}"] = loop.time()
            store.add(event(number, f"k{number}"), at=loop.time())
            if nudged:
                relay.nudge()

        for number in range(2000):
            loop.call_at(1.0 + number / 1000, write, number)
        await run(relay, stop_at=4.0)
        assert not store.waiting()
        return len(store.claims), max(late)

    claims, latest = virtual_time.run(main(nudged=False))
    claims_nudged, latest_nudged = virtual_time.run(main(nudged=True))
    # It was idle at first, and claims at once until it finds that events keep coming.
    assert claims_nudged <= 1.1 * claims
    assert latest_nudged <= max(latest, MOST_GATHERED * 0.004)


@pytest.mark.parametrize("error", [Unavailable("refused"), SettingsError("may not execute"), RuntimeError("a bug")])
def test_where_a_watch_fails_the_outbox_is_asked_by_the_clock(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store, broker = WatchedStore(latency=0.0), MemoryBroker(latency=0.0)
        store.faults["watch"] = [error] * 5
        store.add(event(1), at=2.55)
        published: list[float] = []
        broker.on_publish = lambda events: published.append(store.now())
        await run(Relay(store, broker), stop_at=10.0)
        assert published == pytest.approx([2.55], abs=0.1)
        assert not store.faults["watch"], "a failed watch was not tried again"
        assert len(store.watched) < 30

    with caplog.at_level(logging.WARNING):
        virtual_time.run(main())
    told = [record for record in caplog.records if "watching it failed" in record.message]
    assert len(told) == (0 if isinstance(error, Unavailable) else 5)


def test_a_store_that_cannot_watch_now_is_asked_by_the_clock() -> None:
    async def main() -> None:
        store, broker = WatchedStore(latency=0.0, watches=False), MemoryBroker(latency=0.0)
        await run(Relay(store, broker), stop_at=20.0)
        assert not store.watched
        gaps = [after - before for (before, _), (after, _) in pairwise(store.claims[10:])]
        assert max(gaps) <= 0.1 + 1e-6

    virtual_time.run(main())


def test_a_watch_that_was_cancelled_from_inside_is_no_abort_and_stops_nothing() -> None:
    class CancelsItself(WatchedStore):
        async def watch(self, seconds: float, every: float, pause: float = 0.0) -> bool:
            if len(self.watched) == 2:
                self.watched.append((self.now(), every))
                raise asyncio.CancelledError
            return await super().watch(seconds, every, pause)

    async def main() -> None:
        store, broker = CancelsItself(latency=0.0), MemoryBroker(latency=0.0)
        store.add(event(1), at=5.0)
        await run(Relay(store, broker), stop_at=10.0)
        assert not store.waiting()

    virtual_time.run(main())


def test_a_stop_ends_the_watch_and_then_lets_the_lanes_go() -> None:
    async def main() -> None:
        store, broker = WatchedStore(latency=0.0), MemoryBroker(latency=0.3)
        store.add(event(1), at=9.999)
        await run(Relay(store, broker), stop_at=10.05)
        assert not store.watching
        assert not store.waiting(), "what was published was not carried to its mark"
        # As soon as nothing is in hand, and not when the service closes its resources.
        assert store.let_go_at == [store.now()]

    virtual_time.run(main())


def test_a_store_that_hangs_while_it_lets_go_does_not_hold_up_the_stop() -> None:
    class Hangs(WatchedStore):
        async def let_go(self) -> None:
            await asyncio.sleep(100)

    async def main() -> None:
        stop = await run(Relay(Hangs(), MemoryBroker()), stop_at=1.0, within=2.0)
        assert asyncio.get_running_loop().time() < 3.0
        assert not stop.abandoned

    virtual_time.run(main())


class LateBroker(MemoryBroker):
    """Notes when it may answer late, and when not any more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.told: list[tuple[float, bool]] = []

    def may_answer_late(self, late: bool) -> None:
        self.told.append((asyncio.get_running_loop().time(), late))


def test_the_broker_may_answer_late_as_long_as_another_claim_may_be_made_and_no_stop_has_come() -> None:
    async def main() -> None:
        store, broker = WatchedStore(latency=0.0), LateBroker(latency=0.0, away=Away([(0.5, 1.5)]))
        store.add(event(1, "a"), at=1.0)
        store.add(event(2, "b"), at=1.1)
        store.add(event(3, "c"), at=5.0)
        await run(Relay(store, broker, max_claims=2), stop_at=5.2)
        assert [late for _, late in broker.told] == [True, False, True, False]
        _, full, again, stopped = (at for at, _ in broker.told)
        assert full == pytest.approx(1.1, abs=0.02), "the second claim was the last that may be open"
        assert again == pytest.approx(5.0, abs=0.02), "both have ended, and there was another"
        assert stopped == pytest.approx(5.2, abs=0.02)
        assert not store.waiting()

    virtual_time.run(main())
