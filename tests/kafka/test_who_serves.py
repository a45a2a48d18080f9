"""Whose thread serves delivery reports: the loop's, and the producer's own only while somebody waits for a batch."""

import asyncio
import threading
from collections import Counter
from typing import Literal

import pytest
from confluent_kafka import KafkaError, Message

from quiesce.kafka import KafkaPublisher
from quiesce.kafka.flight import Reports
from quiesce.testing.contracts.publisher import event, within
from quiesce_pytest import MakeTopic

Who = Literal["the loop", "the thread"]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Counter[Who]:
    """How many reports each has served."""
    by: Counter[Who] = Counter()
    loop, answer = threading.current_thread(), Reports._answer

    def counted(reports: Reports, place: int, error: KafkaError | None, message: Message) -> None:
        by["the loop" if threading.current_thread() is loop else "the thread"] += 1
        answer(reports, place, error, message)

    monkeypatch.setattr(Reports, "_answer", counted)
    return by


async def publish(publisher: KafkaPublisher, topic: str, count: int) -> None:
    events = [event(topic, f"key {number}") for number in range(count)]
    async with asyncio.timeout(15):
        assert len(await publisher.publish(events)) == count


@pytest.mark.parametrize("count", [1, 2000])
async def test_the_loop_serves_calls_of_any_size(
    kafka: str, topic: MakeTopic, served: Counter[Who], count: int
) -> None:
    publisher = await KafkaPublisher(kafka).open()
    try:
        name = topic("served", 1)
        # The first event for a partition goes alone, and does not wait for a fuller batch: the thread sees to it.
        await publish(publisher, name, 1)
        assert served == {"the thread": 1}
        # The thread is told to stand by, and may have one more look.
        await publish(publisher, name, 1)
        served.clear()
        for _ in range(3):
            await publish(publisher, name, count)
        assert served == {"the loop": 3 * count}
    finally:
        await publisher.close(within(5))


async def test_the_thread_serves_what_is_left_when_all_is_given_up(
    kafka: str, topic: MakeTopic, served: Counter[Who]
) -> None:
    publisher = await KafkaPublisher(kafka, settings={"linger.ms": 60_000}).open()
    name = topic("served", 1)
    await publish(publisher, name, 1)
    served.clear()
    call = asyncio.create_task(publisher.publish([event(name, "key")]))
    async with asyncio.timeout(15):
        while not (publisher._handle and publisher._handle.queued()):
            await asyncio.sleep(0.001)
    assert await publisher.discard(within(5)) == 1
    assert len(await call) == 0
    assert served == {"the thread": 1}
    await publisher.close(within(5))
