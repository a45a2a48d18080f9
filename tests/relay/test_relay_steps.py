"""What the relay does at each step, when all goes well and when one thing does not."""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from uuid import UUID

import pytest
from scripted_outbox import Away, MemoryBroker, MemoryClaim, MemoryStore, event

from quiesce.errors import ClaimLost, SchemaMissing, Unavailable
from quiesce.lifecycle import crash_points
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import IterationEnded
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.events import ClaimSettled, OutageBegan, ProducerDiscarded
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.outbox.retry import RetryPolicy
from quiesce.relay import Relay, points
from quiesce.testing import virtual_time
from quiesce.testing.manual_stop import ManualStop


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    crash_points.disarm()


def parts(count: int = 10, keys: int = 3) -> tuple[MemoryStore, MemoryBroker]:
    store, broker = MemoryStore(Random(1)), MemoryBroker(Random(2))
    store.add(*(event(position, f"k{position % keys}") for position in range(count)))
    return store, broker


async def run(relay: Relay, stop_at: float = 1.0, within: float = 4.0) -> ManualStop:
    stop = ManualStop(relay.name)
    stop.at(asyncio.get_running_loop().time() + stop_at, within=within)
    await relay.run(stop)
    return stop


def test_a_claim_is_told_and_counted_when_it_is_settled() -> None:
    async def main() -> None:
        store, broker = parts(10)
        too_large, unknown = store.rows[3].event.id, store.rows[4].event.id
        broker.refuse = {too_large: [Dead("MSG_SIZE_TOO_LARGE")], unknown: [Retry("UNKNOWN_TOPIC")]}
        policy = RetryPolicy(backoff=Backoff(first=0.5, draw=lambda: 1.0))
        stop = await run(Relay(store, broker, name="orders", batch=10, retry=policy), stop_at=2.0)
        first, second, *rest = stop.told(ClaimSettled)
        assert (first.relay, first.dispatched, first.retried, first.dead) == ("orders", 8, 1, 1)
        # The refused one comes again when its wait is over; an outage counts no attempt, this does.
        assert (second.dispatched, second.retried, second.dead) == (1, 0, 0)
        assert not rest
        assert 0 < first.publish_seconds < first.seconds
        assert store.dead() == {too_large}
        assert store.rows[4].event.attempts == 1
        # Each look at the outbox is an iteration, the two claims among them.
        assert not [ended for ended in stop.told(IterationEnded) if ended.failed]

    virtual_time.run(main())


def test_claims_are_published_in_the_order_in_which_they_were_made() -> None:
    async def main() -> None:
        store, broker = parts(200, keys=1)
        stop = await run(Relay(store, broker, batch=7, max_in_flight=30, max_claims=4))
        assert [entry.position for entry in broker.log] == list(range(200))
        assert store.most_open_claims > 1, "claims never overlapped, so this shows nothing"
        assert not stop.abandoned

    virtual_time.run(main())


class SlowToAnswer(MemoryStore):
    """Takes the rows at once and answers late (from the second time on): a claim is older than it looks."""

    async def claim(self, limit: int) -> MemoryClaim:
        rows = self._free(limit)
        for row in rows:
            row.claimed = True
        self.claims.append((self.now(), limit))
        self.open_claims += 1
        await asyncio.sleep(0.05 if self.claims[1:] else 0.0)
        return MemoryClaim(self, rows)


@pytest.mark.parametrize("settling", [0.0, 0.4])
def test_O5_a_key_refused_while_the_next_claim_was_on_its_way_is_left_out_of_it(settling: float) -> None:
    async def main() -> None:
        # The claim comes while the refusal is being recorded, or after it.
        store, broker = SlowToAnswer(Random(0), latency=settling), MemoryBroker(latency=0.0)
        one, two, three = event(1, "a"), event(2, "a"), event(3, "b")
        store.add(one)
        store.add(two, three, at=0.0005)
        # It is refused after the second claim has read its rows, and before the relay has them.
        broker.away = Away([(0.0, 0.01)])
        broker.refuse = {one.id: [Retry("LEADER_GONE")]}
        policy = RetryPolicy(backoff=Backoff(first=0.2, draw=lambda: 1.0))
        await run(Relay(store, broker, batch=5, poll_interval=0.001, retry=policy), stop_at=4.0)
        assert [entry.position for entry in broker.log] == [3, 1, 2]
        assert not store.waiting()

    virtual_time.run(main())


def test_O5_what_was_left_out_holds_its_key_until_it_is_given_back() -> None:
    async def main() -> None:
        store, broker = SlowToAnswer(latency=0.0), MemoryBroker(latency=0.0)
        first, second, third, other = event(1, "a"), event(2, "a"), event(3, "a"), event(4, "b")
        store.add(first)
        store.add(second, other, at=0.0005)
        store.add(third, at=0.04)
        # `first` is refused while the claim of `second` and `other` is on its way, and is due again at once.
        # That claim stays open for `other`, which is slow; meanwhile a third claim takes `first` and `third`.
        broker.away = Away([(0.0, 0.01), (0.02, 0.3)])
        broker.refuse = {first.id: [Retry("LEADER_GONE")]}
        policy = RetryPolicy(backoff=Backoff(first=0.001, draw=lambda: 1.0))
        await run(Relay(store, broker, batch=5, poll_interval=0.001, retry=policy), stop_at=2.0)
        assert [entry.position for entry in broker.log if entry.aggregate_id == "a"] == [1, 2, 3]
        assert not store.waiting()

    virtual_time.run(main())


def test_a_claim_that_failed_before_its_hand_over_is_not_overtaken() -> None:
    async def main() -> None:
        store, broker = SlowToAnswer(latency=0.0), MemoryBroker(latency=0.0)
        store.add(*(event(position) for position in range(4)))

        def fail(name: str) -> None:
            crash_points.disarm(name)
            # The next claim has been made and is on its way.
            assert len(store.claimed()) == 2
            raise OSError("injected")

        crash_points.arm(points.CLAIMED, fail)
        await run(Relay(store, broker, batch=1), stop_at=5.0)
        assert [entry.position for entry in broker.log] == [0, 1, 2, 3]

    virtual_time.run(main())


def test_a_claim_that_is_on_its_way_while_answers_get_lost_is_freed() -> None:
    async def main() -> None:
        store = SlowToAnswer(latency=0.0)
        store.add(*(event(position) for position in range(4)))
        broker = LosesAnswers(store, 1)
        await run(Relay(store, broker, batch=1), stop_at=5.0)
        assert [entry.position for entry in broker.log] == [0, 1, 2, 3]
        assert broker.claimed_when_discarded[0] >= 1

    virtual_time.run(main())


def test_an_idle_relay_looks_ten_times_a_second_and_a_nudge_wakes_it_at_once() -> None:
    async def main() -> None:
        store, broker = MemoryStore(latency=0.0), MemoryBroker(latency=0.0)
        relay = Relay(store, broker)
        loop = asyncio.get_running_loop()
        published: list[float] = []
        broker.on_publish = lambda events: published.append(loop.time())

        def write() -> None:
            store.add(event(1), at=loop.time())
            thread = threading.Thread(target=relay.nudge)
            thread.start()
            thread.join()

        relay.nudge()
        loop.call_at(50.55, write)
        await run(relay, stop_at=100.0)
        relay.nudge()
        gaps = [b - a for (a, _), (b, _) in zip(store.claims[10:], store.claims[11:], strict=False)]
        assert max(gaps) <= 0.1 + 1e-6
        assert 900 < len(store.claims) < 1100
        assert published == [50.55]

    virtual_time.run(main())


@pytest.mark.parametrize("waits_for", ["events", "room"])
def test_a_stop_wakes_it_at_once(waits_for: str) -> None:
    async def main() -> None:
        store, broker = parts(0 if waits_for == "events" else 5)
        broker.away = Away([(0.0, 10.049)])
        await run(Relay(store, broker, max_in_flight=5, publish_bound=60.0), stop_at=10.05)
        # Idle looks are a tenth of a second apart. What is in flight is answered and marked in hundredths.
        assert asyncio.get_running_loop().time() < (10.0501 if waits_for == "events" else 10.08)

    virtual_time.run(main())


def test_no_claim_begins_at_the_very_instant_of_the_stop() -> None:
    async def main() -> None:
        store, broker = MemoryStore(latency=0.0), MemoryBroker()
        loop = asyncio.get_running_loop()
        store.add(event(1), at=10.0)
        relay = Relay(store, broker)
        stop = ManualStop("relay")
        store.stop = stop

        def stop_and_nudge() -> None:
            relay.nudge()
            stop.now()
            relay.nudge()

        loop.call_at(10.0, stop_and_nudge)
        await relay.run(stop)
        assert loop.time() == 10.0
        assert not broker.handed_over
        assert store.claims[-1][0] < 10.0

    virtual_time.run(main())


def test_a_claim_made_while_the_stop_comes_is_freed_and_nothing_of_it_published() -> None:
    async def main() -> None:
        store, broker = parts()
        store.latency = 0.5
        stop = await run(Relay(store, broker), stop_at=0.01)
        assert not broker.handed_over
        assert not store.claimed()
        assert not stop.abandoned

    virtual_time.run(main())


def test_a_claim_that_hangs_does_not_hold_up_the_stop() -> None:
    async def main() -> None:
        store, broker = parts()
        store.hangs, store.away = True, Away([(0.0, 1000.0)])
        await run(Relay(store, broker, store_bound=60.0), stop_at=5.0, within=20.0)
        assert asyncio.get_running_loop().time() == pytest.approx(6.0, abs=0.01)

    virtual_time.run(main())


def test_a_lost_claim_is_counted_and_its_events_come_again() -> None:
    async def main() -> None:
        store, broker = parts(6)
        store.faults["settle"] = [ClaimLost("the transaction had ended")]
        relay = Relay(store, broker)
        stop = await run(relay)
        assert len(broker.log) == 12
        assert relay.progress.unmarked == 6
        assert not stop.abandoned
        assert len(store.dispatched()) == 6

    virtual_time.run(main())


def test_acked_events_that_could_not_be_marked_before_the_exit_are_said() -> None:
    async def main() -> None:
        store, broker = parts(6)
        store.hangs, store.away = True, Away([(0.003, 1000.0)])
        stop = await run(Relay(store, broker, store_bound=60.0), stop_at=0.5, within=2.0)
        assert stop.abandoned == [("acked events without a mark", 6)]
        assert asyncio.get_running_loop().time() <= 2.5

    virtual_time.run(main())


class LosesAnswers(MemoryBroker):
    """Some calls of `publish`, by number, return without any outcome, as one does whose producer broke."""

    def __init__(self, store: MemoryStore, *calls: int) -> None:
        super().__init__()
        self._losing = calls
        self.claimed_when_discarded: list[int] = []
        self._store = store
        self._calls = 0

    async def publish(self, events: Sequence[ClaimedEvent]) -> Mapping[UUID, Outcome]:
        self._calls += 1
        return {} if self._calls in self._losing else await super().publish(events)

    async def discard(self, deadline: Deadline) -> int:
        self.claimed_when_discarded.append(len(self._store.claimed()))
        return await super().discard(deadline)


def test_O9_a_producer_that_lost_answers_is_discarded_before_anything_is_freed() -> None:
    async def main() -> None:
        store, _ = parts(6)
        store.add(event(6, "late"), event(7, "late"), at=2.0)
        broker = LosesAnswers(store, 1, 3)
        stop = await run(Relay(store, broker), stop_at=6.0)
        assert broker.claimed_when_discarded == [6, 2]
        assert len(store.dispatched()) == 8
        assert len(stop.told(ProducerDiscarded)) == 2
        assert not stop.told(OutageBegan), "the broker answers"

    virtual_time.run(main())


def test_O24_an_unexpected_error_gives_everything_back_and_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store, broker = parts(6)
        broker.faults = [ZeroDivisionError("a bug in the publisher")]
        store.faults = {"claim": [KeyError("a bug in the store")], "settle": [KeyError("another one")]}
        relay = Relay(store, broker)
        stop = await run(relay, stop_at=60.0)
        assert len(store.dispatched()) == 6
        assert not store.claimed()
        assert relay.progress.faults == 3
        assert len([ended for ended in stop.told(IterationEnded) if ended.failed]) == 3

    virtual_time.run(main())
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 3
    assert all(record.exc_info for record in errors)


def test_a_cancel_from_inside_the_store_is_no_abort() -> None:
    async def main() -> None:
        store, broker = parts(6)
        store.cancels_itself = 2
        relay = Relay(store, broker)
        await run(relay, stop_at=60.0)
        assert relay.progress.faults == 2
        assert len(store.dispatched()) == 6

        store.cancels_itself = 99
        with pytest.raises(RuntimeError, match="the relay itself was not"):
            await run(Relay(store, broker), stop_at=600.0)

    virtual_time.run(main())


def test_a_cancel_from_inside_a_publish_is_a_fault_and_frees_nothing_before_the_discard() -> None:
    class CancelsItself(LosesAnswers):
        async def publish(self, events: Sequence[ClaimedEvent]) -> Mapping[UUID, Outcome]:
            if not await super().publish(events):
                gone = asyncio.get_running_loop().create_future()
                gone.cancel()
                await gone
            return {event.id: DISPATCHED for event in events}

    async def main() -> None:
        store, _ = parts(6)
        broker = CancelsItself(store, 1)
        relay = Relay(store, broker)
        await run(relay, stop_at=60.0)
        assert relay.progress.faults == 1
        assert broker.claimed_when_discarded == [6]
        assert len(store.dispatched()) == 6

    virtual_time.run(main())


def test_a_slow_settle_is_no_silence_of_the_broker() -> None:
    async def main() -> None:
        store, broker = parts(6)
        store.hangs, store.away = True, Away([(0.003, 5.0)])
        stop = await run(Relay(store, broker, publish_bound=1.0, store_bound=60.0, max_claims=1), stop_at=10.0)
        assert len(store.dispatched()) == 6
        assert not stop.told(OutageBegan)
        assert broker.discards == 0

    virtual_time.run(main())


def test_a_broker_that_answers_and_breaks_every_producer_is_not_tried_without_pause() -> None:
    async def main() -> None:
        store, broker = parts(6)
        broker.on_publish = lambda events: broker.faults.append(Unavailable("fenced"))
        stop = await run(Relay(store, broker), stop_at=100.0)
        assert 50 < broker.discards < 200
        assert not stop.told(OutageBegan), "the broker answers"
        assert not store.claimed()

    virtual_time.run(main())


def test_unexpected_errors_in_a_row_end_it() -> None:
    async def main() -> None:
        store, broker = parts(6)
        broker.faults = [ZeroDivisionError(str(n)) for n in range(10)]
        with pytest.raises(ZeroDivisionError, match="4"):
            await run(Relay(store, broker), stop_at=600.0)
        assert not store.claimed()
        assert len(broker.faults) == 5

    virtual_time.run(main())


def test_settled_claims_between_them_make_errors_forgiven() -> None:
    async def main() -> None:
        store, broker = MemoryStore(), MemoryBroker()
        for n in range(12):
            store.add(event(n), at=float(n * 3))
        turn = 0

        def now_and_then(events: object) -> None:
            nonlocal turn
            turn += 1
            if turn % 2:
                raise ZeroDivisionError

        broker.on_publish = now_and_then
        await run(Relay(store, broker), stop_at=60.0)
        assert len(store.dispatched()) == 12

    virtual_time.run(main())


def test_a_missing_table_ends_it_at_once() -> None:
    async def main() -> None:
        store, broker = parts()
        store.faults["claim"] = [SchemaMissing("table outbox_event is missing: run `quiesce outbox schema apply`")]
        with pytest.raises(SchemaMissing):
            await run(Relay(store, broker))

    virtual_time.run(main())


def test_an_error_of_the_database_in_a_publish_is_no_bug() -> None:
    async def main() -> None:
        store, broker = parts(4)
        broker.faults = [Unavailable("all brokers are down")]
        relay = Relay(store, broker)
        await run(relay, stop_at=5.0)
        assert relay.progress.faults == 0
        assert len(store.dispatched()) == 4

    virtual_time.run(main())


@pytest.mark.parametrize(
    ("point", "delivered", "marked"), [(points.CLAIMED, 0, 0), (points.PUBLISHED, 5, 0), (points.SETTLED, 5, 5)]
)
def test_the_crash_points_lie_where_their_names_say(point: str, delivered: int, marked: int) -> None:
    async def main() -> None:
        store, broker = parts(5)
        seen: list[tuple[int, int]] = []
        crash_points.arm(point, lambda _: seen.append((len(broker.log), len(store.dispatched()))))
        await run(Relay(store, broker, batch=5))
        assert seen == [(delivered, marked)]

    virtual_time.run(main())


@pytest.mark.parametrize("point", points.ALL)
def test_an_error_at_a_crash_point_loses_nothing(point: str) -> None:
    async def main() -> None:
        store, broker = parts(5)

        def fail(name: str) -> None:
            crash_points.disarm(name)
            raise OSError("injected")

        crash_points.arm(point, fail)
        await run(Relay(store, broker), stop_at=10.0)
        assert len(store.dispatched()) == 5
        assert not store.claimed()

    virtual_time.run(main())


def test_O24_progress_shows_how_long_events_have_waited_for_any_answer() -> None:
    async def main() -> None:
        store, broker = parts(5)
        broker.away = Away([(0.0, 30.0)])
        relay = Relay(store, broker, publish_bound=2.0)
        stop = ManualStop("relay")
        task = asyncio.create_task(relay.run(stop))

        def seen() -> tuple[str | None, int, float]:
            now = asyncio.get_running_loop().time()
            return relay.progress.outage, relay.progress.in_flight, round(relay.progress.silent_for(now))

        await asyncio.sleep(1.0)
        assert seen() == (None, 5, 1)
        await asyncio.sleep(9.0)
        assert seen() == ("broker", 0, 10)
        await asyncio.sleep(30.0)
        assert seen() == (None, 0, 0)
        assert relay.progress.last_ack_at is not None
        stop.now()
        await task

    virtual_time.run(main())


def test_an_abort_past_the_deadline_still_discards_before_it_frees(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store, broker = parts(5)
        broker.away = Away([(0.0, 30.0)])
        stop = ManualStop("relay")
        task = asyncio.create_task(Relay(store, broker).run(stop))
        await asyncio.sleep(0.5)
        # As after a handler that blocked the loop until its deadline was over.
        stop.now(within=0.0)
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)
        assert task.cancelled()
        assert broker.discards == 1
        assert not store.claimed()
        assert stop.abandoned == [("events published without an answer", 5)]

    virtual_time.run(main())
    assert not [line for line in caplog.records if line.levelname == "ERROR"]


def test_a_relay_that_asked_to_be_cancelled_on_drain_leaves_nothing_to_report() -> None:
    async def main() -> None:
        store, broker = parts(5)
        broker.away = Away([(0.0, 30.0)])
        stop = ManualStop("relay")
        relay = Relay(store, broker, on_drain="cancel")
        task = asyncio.create_task(relay.run(stop))
        await asyncio.sleep(0.5)
        stop.now()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert not stop.abandoned
        assert not store.claimed()

    virtual_time.run(main())
