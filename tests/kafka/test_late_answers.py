"""Calls of a few events that may end a little late, so that several are settled together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from uuid import UUID

import pytest
from confluent_kafka import KafkaError
from mock_cluster import PRODUCE, MockCluster

from quiesce.kafka import KafkaPublisher, answering, poller
from quiesce.outbox.answers import all_dispatched, seconds_of
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import DISPATCHED, Outcome, Retry
from quiesce.testing.contracts.publisher import event, within

BOUND = 15.0
LONG = 600.0
"""Seconds that no test waits for."""


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as cluster:
        cluster.create_topic("t")
        yield cluster


@pytest.fixture
async def publisher(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KafkaPublisher]:
    """One that has written to its only partition. What is late is so for good, and nobody looks between two calls."""
    monkeypatch.setattr(answering, "_LATE", LONG)
    monkeypatch.setattr(answering, "_RESTS", LONG)
    publisher = await KafkaPublisher(cluster.bootstrap).open()
    async with asyncio.timeout(BOUND):
        await publisher.publish([event("t")])
    publisher.may_answer_late(True)
    yield publisher
    await publisher.close(within(5))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not holds():
            await asyncio.sleep(0.001)


def answered(publisher: KafkaPublisher, calls: int) -> Callable[[], bool]:
    def all_are() -> bool:
        handle = publisher._handle
        assert handle is not None
        assert handle._producer is not None
        # It notes what was answered; no call ends by that.
        handle._producer.poll(0)
        flights = handle.answering.flights
        return len(flights) == calls and all(flight.answered for flight in flights)

    return all_are


async def test_calls_of_a_few_events_end_together_as_soon_as_somebody_waits_for_one(publisher: KafkaPublisher) -> None:
    calls = [asyncio.create_task(publisher.publish([event("t")])) for _ in range(3)]
    await until(answered(publisher, 3))
    assert not any(call.done() for call in calls)
    publisher.may_answer_late(False)
    done, _ = await asyncio.wait(calls, timeout=BOUND)
    assert len(done) == 3
    # From then on each ends with its last answer.
    async with asyncio.timeout(BOUND):
        await publisher.publish([event("t")])


async def test_a_call_of_many_events_ends_with_its_last_answer_and_takes_the_others_along(
    publisher: KafkaPublisher,
) -> None:
    few = asyncio.create_task(publisher.publish([event("t")]))
    await until(answered(publisher, 1))
    async with asyncio.timeout(BOUND):
        await publisher.publish([event("t") for _ in range(answering._FEW + 1)])
        await few


async def under_way(publisher: KafkaPublisher, events: list[ClaimedEvent]) -> asyncio.Task[Mapping[UUID, Outcome]]:
    """A call that waits for its answers."""
    call = asyncio.create_task(publisher.publish(events))
    await until(lambda: publisher._last is not None and publisher._last.events is events)
    return call


async def test_a_call_of_a_few_is_made_longer(publisher: KafkaPublisher) -> None:
    events = [event("t")]
    call = await under_way(publisher, events)
    for _ in range(3):
        more = [event("t")]
        assert publisher.takes(events, more)
        known = len(events)
        events += more
        publisher.add(events, known)
    await until(answered(publisher, 1))
    assert not call.done()
    publisher.may_answer_late(False)
    outcomes = await call
    assert dict(outcomes) == {one.id: DISPATCHED for one in events}
    assert all_dispatched(outcomes, events)
    assert not publisher.takes(events, [event("t")]), "it is over"


async def test_a_call_is_made_longer_only_where_nothing_need_be_asked_or_waited_for(
    publisher: KafkaPublisher,
) -> None:
    events = [event("t")]
    call = await under_way(publisher, events)
    assert publisher.takes(events, [event("t")])
    assert not publisher.takes(list(events), [event("t")]), "another call's"
    assert not publisher.takes(events, [event("never asked about")])
    assert not publisher.takes(events, [event("t") for _ in range(answering._FEW)]), "too many"
    later = await under_way(publisher, [event("t")])
    assert not publisher.takes(events, [event("t")]), "another was made behind it"
    publisher.may_answer_late(False)
    await asyncio.gather(call, later)


async def test_what_was_added_and_has_no_answer_is_missing_when_all_is_given_up(publisher: KafkaPublisher) -> None:
    events = [event("t")]
    call = await under_way(publisher, events)
    await until(answered(publisher, 1))
    events.append(event("t"))
    publisher.add(events, 1)
    await publisher.discard(within(5))
    outcomes = await call
    # Nobody knows how far the second one had come.
    assert list(outcomes)[:1] == [events[0].id]
    assert set(outcomes) <= {one.id for one in events}


async def test_what_was_told_late_took_no_longer_for_that(publisher: KafkaPublisher) -> None:
    loop = asyncio.get_running_loop()
    call = asyncio.create_task(publisher.publish([event("t")]))
    began = loop.time()
    await until(answered(publisher, 1))
    took = loop.time() - began
    # Later than any answer could be measured.
    await until(lambda: loop.time() > began + 2 * took + 0.05)
    publisher.may_answer_late(False)
    seconds = seconds_of(await call)
    assert seconds is not None
    assert 0 < seconds <= took


async def test_what_a_call_took_that_grew_is_told_by_what_it_began_with(
    cluster: MockCluster, publisher: KafkaPublisher
) -> None:
    events = [event("t")]
    loop = asyncio.get_running_loop()
    began = loop.time()
    call = await under_way(publisher, events)
    await until(answered(publisher, 1))
    took = loop.time() - began
    cluster.set_round_trip(took + 0.2)
    events.append(event("t"))
    publisher.add(events, 1)
    await until(answered(publisher, 1))
    publisher.may_answer_late(False)
    seconds = seconds_of(await call)
    assert seconds is not None
    assert 0 < seconds <= took


async def test_for_a_call_that_may_end_late_nobody_looks_before(
    cluster: MockCluster, publisher: KafkaPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look would wake the process."""
    assert publisher._handle is not None
    looks, serve = [0], publisher._handle.answering.serve

    def counted() -> int:
        looks[0] += 1
        return serve()

    monkeypatch.setattr(publisher._handle.answering, "serve", counted)
    # Long enough for looks at an answer that is waited for.
    cluster.set_round_trip(0.1)
    call = await under_way(publisher, [event("t")])
    await until(answered(publisher, 1))
    # One may have been due from before. For an answer that is waited for it would be a dozen.
    assert looks[0] <= 1
    publisher.may_answer_late(False)
    await call


async def test_nothing_goes_along_behind_what_the_broker_has_refused(
    cluster: MockCluster, publisher: KafkaPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks is the first to look, and must not be told what was true before."""
    assert publisher._handle is not None
    served, serve = [0], publisher._handle.answering.serve

    def counted() -> int:
        now = serve()
        served[0] += now
        return now

    monkeypatch.setattr(publisher._handle.answering, "serve", counted)
    # A fatal error is told before the report on what it is about, and that may take a moment.
    monkeypatch.setattr(poller, "_BEHIND", 0.5)
    cluster.answer(PRODUCE, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    events = [event("t")]
    call = await under_way(publisher, events)
    taken: list[bool] = []

    def heard() -> bool:
        taken.append(publisher.takes(events, [event("t")]))
        return bool(served[0])

    await until(heard)
    assert not taken[-1]
    assert isinstance((await call)[events[0].id], Retry)


async def test_of_two_calls_that_end_late_the_second_does_so_too(
    publisher: KafkaPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes behind them, and nobody looks between two calls."""
    monkeypatch.setattr(answering, "_LATE", 0.1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    first = await under_way(publisher, [event("t")])
    await until(lambda: loop.time() > began + 0.02)
    second = await under_way(publisher, [event("t")])
    done, _ = await asyncio.wait([first, second], timeout=BOUND)
    assert len(done) == 2


async def test_a_call_ends_no_later_while_another_is_hurried(
    cluster: MockCluster, publisher: KafkaPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one is whose first event for a partition is under way; that one is not answered for long."""
    monkeypatch.setattr(answering, "_LATE", 0.1)
    call = await under_way(publisher, [event("t")])
    await until(answered(publisher, 1))
    cluster.set_round_trip(60.0)
    assert publisher._handle is not None
    assert publisher._handle._producer is not None
    publisher._handle._producer.produce("t", b"x")
    publisher._handle.answering.hurry()
    async with asyncio.timeout(BOUND):
        await call
    await publisher.discard(within(5))


async def test_calls_under_way_end_when_all_is_given_up(publisher: KafkaPublisher) -> None:
    call = asyncio.create_task(publisher.publish([event("t")]))
    await until(answered(publisher, 1))
    assert await publisher.discard(within(5)) == 0
    assert len(await call) == 1


async def test_a_broker_that_is_slow_is_looked_at_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits for a silent broker must not keep the loop busy."""
    with MockCluster() as cluster:
        cluster.create_topic("t")
        publisher = await KafkaPublisher(cluster.bootstrap).open()
        await publisher.publish([event("t")])
        assert publisher._handle is not None
        cluster.set_round_trip(0.5)
        looks, serve = [0], publisher._handle.answering.serve

        def counted() -> int:
            looks[0] += 1
            return serve()

        monkeypatch.setattr(publisher._handle.answering, "serve", counted)
        async with asyncio.timeout(BOUND):
            await publisher.publish([event("t")])
        await publisher.close(within(5))
    # Every millisecond would be 500.
    assert looks[0] < 60
