"""Calls of a few events that may end a little late, so that several are settled together; the thread meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest
from confluent_kafka import Producer
from mock_cluster import MockCluster

from quiesce.kafka import KafkaPublisher, answering, poller
from quiesce.kafka.poller import Poller
from quiesce.outbox.answers import seconds_of
from quiesce.testing.contracts.publisher import event, within

BOUND = 15.0
LONG = 600.0
"""Seconds that no test waits for."""


@pytest.fixture
async def publisher(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KafkaPublisher]:
    """One that has written to its only partition. What is late is so for good."""
    monkeypatch.setattr(answering, "_LATE", LONG)
    with MockCluster() as cluster:
        cluster.create_topic("t")
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
        assert publisher._handle is not None
        flights = publisher._handle.answering.flights
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


async def test_calls_under_way_end_when_all_is_given_up(publisher: KafkaPublisher) -> None:
    call = asyncio.create_task(publisher.publish([event("t")]))
    await until(answered(publisher, 1))
    assert await publisher.discard(within(5)) == 0
    assert len(await call) == 1


class OneReport:
    """A producer with nothing handed over, whose one report is there for the first who looks."""

    def __init__(self) -> None:
        self.looks = 0

    def __len__(self) -> int:
        return 0

    def poll(self, _: float) -> int:
        self.looks += 1
        return self.looks == 1


async def test_a_report_that_comes_while_the_thread_wakes_from_its_rest_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is served in the very look that ends the rest, and there may be no other for long."""
    monkeypatch.setattr(poller, "_RESTS_AFTER", 0.0)
    monkeypatch.setattr(poller, "_REST", LONG)
    told = threading.Event()

    def served() -> float:
        told.set()
        return 0.0

    producer = OneReport()
    rests = Poller([cast(Producer, producer)], lambda error: None, served)
    await until(lambda: rests._resting)
    rests.handed_over()
    await until(told.is_set)
    # Nor does it sleep through its end.
    await until(lambda: rests._resting)
    rests.stop()
    await until(rests.is_gone)
