"""Whose thread serves delivery reports: the loop's while much is handed over, the producer's own otherwise."""

import asyncio
import threading
from collections import Counter
from typing import Literal

import pytest
from confluent_kafka import KafkaError, Message

from quiesce.kafka import KafkaPublisher, answering
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


async def test_the_loop_serves_large_calls_that_follow_each_other(
    kafka: str, topic: MakeTopic, served: Counter[Who], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the next call may be late.
    monkeypatch.setattr(answering, "_MOMENT", 10.0)
    publisher = await KafkaPublisher(kafka).open()
    try:
        name = topic("served", 1)
        await publish(publisher, name, 2000)
        # The thread was polling when the first reports came, and may have got many.
        served.clear()
        await publish(publisher, name, 2000)
        assert served == {"the loop": 2000}
    finally:
        await publisher.close(within(5))


async def test_the_thread_serves_small_calls(kafka: str, topic: MakeTopic, served: Counter[Who]) -> None:
    publisher = await KafkaPublisher(kafka).open()
    try:
        name = topic("served", 1)
        for _ in range(3):
            await publish(publisher, name, 1)
        assert served == {"the thread": 3}
    finally:
        await publisher.close(within(5))
