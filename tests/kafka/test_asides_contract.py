"""The contract of dead letters and retry topics, on Apache Kafka and in memory."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest
from broker import records

from quiesce.inbox.record import Record
from quiesce.kafka import KafkaDeadLetters, KafkaRetryTopic
from quiesce.lifecycle.deadline import Deadline
from quiesce.testing.contracts import asides as contract
from quiesce.testing.kafka import LocalKafka
from quiesce.testing.memory_asides import MemoryDeadLetters, MemoryRetryTopic
from quiesce_pytest import MakeTopic


class KafkaWorld:
    def __init__(self, bootstrap: str, dead: str, retry: str, own: LocalKafka | None = None) -> None:
        self._bootstrap = bootstrap
        self._dead = dead
        self._retry = retry
        self._own = own
        self._opened: list[KafkaDeadLetters | KafkaRetryTopic] = []

    async def dead_letters(self) -> KafkaDeadLetters:
        letters = await KafkaDeadLetters(self._bootstrap, topic=self._dead).open()
        self._opened.append(letters)
        return letters

    async def retry_topic(self) -> KafkaRetryTopic:
        topic = await KafkaRetryTopic(self._bootstrap, self._retry).open()
        self._opened.append(topic)
        return topic

    async def dead(self) -> Sequence[Record]:
        return await asyncio.to_thread(records, self._bootstrap, self._dead)

    async def postponed(self) -> Sequence[Record]:
        return await asyncio.to_thread(records, self._bootstrap, self._retry)

    async def silence(self) -> None:
        assert self._own is not None, "this broker is shared"
        self._own.pause()

    async def speak(self) -> None:
        assert self._own is not None
        self._own.resume()

    async def close(self) -> None:
        if self._own is not None:
            self._own.resume()
        for one in self._opened:
            await one.close(Deadline(time.monotonic() + 5))


class MemoryWorld:
    def __init__(self) -> None:
        self._dead = MemoryDeadLetters()
        self._retry = MemoryRetryTopic()

    async def dead_letters(self) -> MemoryDeadLetters:
        return await self._dead.open()

    async def retry_topic(self) -> MemoryRetryTopic:
        return await self._retry.open()

    async def dead(self) -> Sequence[Record]:
        return self._dead.records

    async def postponed(self) -> Sequence[Record]:
        return self._retry.records

    async def silence(self) -> None:
        self._dead.silent = True

    async def speak(self) -> None:
        self._dead.silent = False


@pytest.fixture
async def shared_world(kafka: str, topic: MakeTopic) -> AsyncIterator[KafkaWorld]:
    world = KafkaWorld(kafka, topic("dead", partitions=1), topic("retry", partitions=1))
    yield world
    await world.close()


@pytest.fixture
async def own_world(paused_kafka: LocalKafka) -> AsyncIterator[KafkaWorld]:
    dead = f"dead-{uuid4().hex[:12]}"
    paused_kafka.create_topic(dead)
    world = KafkaWorld(paused_kafka.bootstrap, dead, "none", paused_kafka)
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


@pytest.mark.parametrize("check", contract.CHECKS + contract.SILENCE_CHECKS, ids=lambda check: check.__name__)
async def test_in_memory(check: contract.Check) -> None:
    await check(MemoryWorld())
