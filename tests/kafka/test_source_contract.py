"""The source's contract, on Apache Kafka in both group protocols, and in memory."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import pytest
from broker import NEW_PROTOCOL, QUICK_GROUP, append, committed

from quiesce.inbox.ports import Source
from quiesce.inbox.record import TopicPartition
from quiesce.kafka import KafkaSource
from quiesce.lifecycle.deadline import Deadline
from quiesce.testing.contracts import source as contract
from quiesce.testing.memory_source import MemoryGroup, MemorySource
from quiesce_pytest import MakeTopic


class KafkaWorld:
    def __init__(self, bootstrap: str, topic: str, group: str, settings: Mapping[str, object]) -> None:
        self.topic = topic
        self._settings = settings
        self._bootstrap = bootstrap
        self._group = group
        self._sources: list[Source] = []

    async def source(self, *, revoke_bound: float = 5.0) -> Source:
        source = KafkaSource(
            self._bootstrap, self.topic, group=self._group, revoke_bound=revoke_bound, settings=self._settings
        )
        self._sources.append(await source.open())
        return source

    async def append(self, partition: int, values: Sequence[bytes]) -> None:
        await asyncio.to_thread(append, self._bootstrap, self.topic, values, partition)

    async def committed(self) -> Mapping[TopicPartition, int]:
        return await asyncio.to_thread(committed, self._bootstrap, self._group, self.topic, 2)

    async def close(self) -> None:
        for source in self._sources:
            await source.close(Deadline(time.monotonic() + 5))


class MemoryWorld:
    def __init__(self) -> None:
        self._group = MemoryGroup()
        self.topic = self._group.topic

    async def source(self, *, revoke_bound: float = 5.0) -> Source:
        return await MemorySource(self._group, revoke_bound=revoke_bound).open()

    async def append(self, partition: int, values: Sequence[bytes]) -> None:
        self._group.append(partition, *values)

    async def committed(self) -> Mapping[TopicPartition, int]:
        return self._group.committed


MakeWorld = Callable[[Mapping[str, object]], KafkaWorld]


@pytest.fixture
async def world(kafka: str, topic: MakeTopic, group: str) -> AsyncIterator[MakeWorld]:
    worlds: list[KafkaWorld] = []

    def make(settings: Mapping[str, object]) -> KafkaWorld:
        worlds.append(KafkaWorld(kafka, topic(partitions=2), group, settings))
        return worlds[-1]

    yield make
    for one in worlds:
        await one.close()


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_on_kafka(check: contract.Check, world: MakeWorld) -> None:
    await check(world(QUICK_GROUP))


@pytest.mark.parametrize("check", contract.OF_REBALANCES, ids=lambda check: check.__name__)
async def test_on_kafka_where_the_broker_assigns(check: contract.Check, world: MakeWorld) -> None:
    await check(world(NEW_PROTOCOL))


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_in_memory(check: contract.Check) -> None:
    await check(MemoryWorld())
