"""The publisher's contract, on Apache Kafka and in memory."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from uuid import uuid4

import pytest
from broker import records

from quiesce.inbox.record import Record
from quiesce.kafka import KafkaPublisher
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.outcome import Retry
from quiesce.outbox.ports import Publisher
from quiesce.testing.contracts import publisher as contract
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.memory_publisher import MemoryBroker, MemoryPublisher


class KafkaWorld:
    """Publishers on a real broker. Only a broker of our own can be silenced."""

    too_large = 2_000_000

    def __init__(self, bootstrap: str, create_topic: Callable[[], str], own: LocalKafka | None = None) -> None:
        self._bootstrap = bootstrap
        self._create_topic = create_topic
        self._own = own
        self._publishers: list[Publisher] = []

    async def publisher(self) -> Publisher:
        self._publishers.append(await KafkaPublisher(self._bootstrap).open())
        return self._publishers[-1]

    async def topic(self) -> str:
        return self._create_topic()

    async def records(self, topic: str) -> Sequence[Record]:
        return await asyncio.to_thread(records, self._bootstrap, topic)

    async def silence(self) -> None:
        assert self._own is not None, "this broker is shared"
        self._own.pause()

    async def speak(self) -> None:
        assert self._own is not None
        self._own.resume()

    async def close(self) -> None:
        if self._own is not None:
            self._own.resume()
        for publisher in self._publishers:
            await publisher.close(Deadline(time.monotonic() + 5))


class MemoryWorld:
    too_large = 2_000_000

    def __init__(self) -> None:
        self._broker = MemoryBroker()

    async def publisher(self) -> Publisher:
        return await MemoryPublisher(self._broker).open()

    async def topic(self) -> str:
        name = f"t-{uuid4().hex[:12]}"
        self._broker.create_topic(name)
        return name

    async def records(self, topic: str) -> Sequence[Record]:
        return self._broker.records(topic)

    async def silence(self) -> None:
        self._broker.silence()

    async def speak(self) -> None:
        self._broker.speak()


@pytest.fixture
async def shared_world(kafka: str, topic: Callable[[], str]) -> AsyncIterator[KafkaWorld]:
    world = KafkaWorld(kafka, topic)
    yield world
    await world.close()


@pytest.fixture
async def own_world(paused_kafka: LocalKafka) -> AsyncIterator[KafkaWorld]:
    def create_topic() -> str:
        name = f"t-{uuid4().hex[:12]}"
        paused_kafka.create_topic(name)
        return name

    world = KafkaWorld(paused_kafka.bootstrap, create_topic, paused_kafka)
    yield world
    await world.close()


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_on_kafka(check: contract.Check, shared_world: KafkaWorld) -> None:
    await check(shared_world)


@pytest.mark.needs("kafka")
@pytest.mark.xdist_group("kafka to pause")
@pytest.mark.parametrize("check", contract.SILENCE_CHECKS, ids=lambda check: check.__name__)
async def test_on_a_silent_kafka(check: contract.Check, own_world: KafkaWorld) -> None:
    await check(own_world)


async def test_O6_in_memory_nothing_goes_behind_a_refusal() -> None:
    broker = MemoryBroker()
    broker.create_topic("t", 1)
    first, second, third = (contract.event("t") for _ in range(3))
    refusals = {first.id: [Retry("POLICY_VIOLATION")]}
    publisher = MemoryPublisher(broker, lambda e: refusals[e.id].pop() if refusals.get(e.id) else None)
    await publisher.open()
    answers = [await publisher.publish([first, second]), await publisher.publish([third])]
    assert answers == [{first.id: Retry("POLICY_VIOLATION")}, {}]
    await publisher.discard(contract.within(1))
    await publisher.publish([first, second, third])
    assert contract.ids(broker.records("t")) == [str(one.id) for one in (first, second, third)]


@pytest.mark.parametrize("check", contract.CHECKS + contract.SILENCE_CHECKS, ids=lambda check: check.__name__)
async def test_in_memory(check: contract.Check) -> None:
    await check(MemoryWorld())
