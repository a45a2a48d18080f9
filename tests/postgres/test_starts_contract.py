"""The contract of counted starts, on PostgreSQL and in memory."""

import time
from collections.abc import AsyncIterator

import pytest

from quiesce.inbox.ports import CountsStarts
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import RecordStarts
from quiesce.testing.contracts import starts as contract
from quiesce.testing.memory_starts import MemoryStarts, StartsLog


class PostgresWorld:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._processes: list[RecordStarts] = []

    async def process(self) -> CountsStarts:
        self._processes.append(await RecordStarts(self._dsn).open())
        return self._processes[-1]

    async def stop(self, process: CountsStarts) -> None:
        assert isinstance(process, RecordStarts)
        await process.close(Deadline(time.monotonic() + 5))

    async def close(self) -> None:
        for process in self._processes:
            await self.stop(process)


class MemoryWorld:
    def __init__(self) -> None:
        self._log = StartsLog()

    async def process(self) -> CountsStarts:
        return MemoryStarts(self._log)

    async def stop(self, process: CountsStarts) -> None:
        assert isinstance(process, MemoryStarts)
        process.stop()


@pytest.fixture
async def world(database: str) -> AsyncIterator[PostgresWorld]:
    made = PostgresWorld(database)
    yield made
    await made.close()


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_on_postgres(check: contract.Check, world: PostgresWorld) -> None:
    await check(world)


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_in_memory(check: contract.Check) -> None:
    await check(MemoryWorld())
