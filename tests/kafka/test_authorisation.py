"""Users, passwords and rights on a real broker: each refusal has its own name."""

import asyncio
import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from quiesce.errors import QuiesceError
from quiesce.kafka import KafkaPublisher
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.event import PlainEvent
from quiesce.outbox.outcome import DISPATCHED, Outcome, Retry
from quiesce.testing.kafka import LocalKafka

pytestmark = [pytest.mark.needs("kafka"), pytest.mark.xdist_group("kafka with users")]

USERS = {"writer": "w-secret", "stranger": "s-secret"}


def login(broker: LocalKafka, user: str, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.sasl_bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }


async def publish_one(settings: dict[str, str], topic: str) -> Outcome:
    publisher = await KafkaPublisher(settings).open()
    try:
        event = PlainEvent(1, uuid4(), "k", topic, "Counted", b"1", {})
        return (await publisher.publish([event]))[event.id]
    finally:
        await publisher.close(Deadline(time.monotonic() + 2))


async def test_a_right_is_needed_and_is_enough(own_kafka: Callable[..., LocalKafka]) -> None:
    broker = own_kafka(users=USERS)
    broker.create_topic("guarded")
    broker.address.allow("writer", "write", "guarded")
    # One who may write nowhere is not even given a producer's number; this one may write somewhere else.
    broker.address.allow("stranger", "write", "elsewhere")

    assert await publish_one(login(broker, "writer", USERS["writer"]), "guarded") is DISPATCHED

    refused = await publish_one(login(broker, "stranger", USERS["stranger"]), "guarded")
    assert isinstance(refused, Retry), "a right may be granted later"
    assert "AUTHORIZATION" in refused.reason

    with pytest.raises(QuiesceError) as wrong:
        await publish_one(login(broker, "writer", "not-it"), "guarded")
    assert "not-it" not in str(wrong.value)
    assert "uthentication" in str(wrong.value)


async def test_O24_a_missing_right_stops_no_other_topic_and_counts_once_it_is_granted(
    own_kafka: Callable[..., LocalKafka],
) -> None:
    broker = own_kafka(users=USERS)
    for name in ("open", "guarded"):
        broker.create_topic(name)
    broker.address.allow("writer", "write", "open")
    broker.address.allow("writer", "describe", "guarded")
    publisher = await KafkaPublisher(login(broker, "writer", USERS["writer"])).open()

    async def publish(*topics: str) -> list[Outcome]:
        events = [PlainEvent(1, uuid4(), "k", topic, "Counted", b"1", {}) for topic in topics]
        async with asyncio.timeout(20):
            answers = await publisher.publish(events)
            if len(answers) < len(events):
                await publisher.discard(Deadline(time.monotonic() + 2))
            return [answers[event.id] for event in events if event.id in answers]

    # It is found out by a refusal, at the price of a producer.
    (refused,) = await publish("guarded")
    assert isinstance(refused, Retry)
    assert refused.reason.startswith("TOPIC_AUTHORIZATION_FAILED")
    # And from then on by asking, at no price.
    await publish("open")
    producer = publisher._handle
    until = time.monotonic() + 3
    while time.monotonic() < until:
        refused, flows = await publish("guarded", "open")
        assert isinstance(refused, Retry)
        assert flows is DISPATCHED
    assert publisher._handle is producer
    broker.address.allow("writer", "write", "guarded")
    async with asyncio.timeout(20):
        while await publish("guarded") != [DISPATCHED]:
            await asyncio.sleep(0.1)
    await publisher.close(Deadline(time.monotonic() + 2))
