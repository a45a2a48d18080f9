"""Users, passwords and rights on a real broker: each refusal has its own name."""

import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from quiesce.errors import QuiesceError
from quiesce.kafka import KafkaPublisher
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.event import ClaimedEvent
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
        event = ClaimedEvent(1, uuid4(), "k", topic, "Counted", b"1", {})
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
