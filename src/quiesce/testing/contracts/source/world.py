"""What the checks of a `Source` need, and what they do with it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from quiesce.errors import CommitRefused
from quiesce.inbox.ports import Source
from quiesce.inbox.record import Batch, Record, TopicPartition
from quiesce.testing.contracts.expectations import raised, within

BOUND = 15.0
"""Seconds after which a check says that something hangs. A group takes seconds to agree."""


class SourceWorld(Protocol):
    """What a check needs of an adapter: one topic of two partitions, one group, and members of it."""

    @property
    def topic(self) -> str: ...

    async def source(self, *, revoke_bound: float = 5.0) -> Source:
        """A new member of the group, open. The world closes it if the check does not."""
        ...

    async def append(self, partition: int, values: Sequence[bytes]) -> None: ...

    async def committed(self) -> Mapping[TopicPartition, int]:
        """The group's committed offsets; a partition without one is left out."""
        ...


Check = Callable[[SourceWorld], Awaitable[None]]


def numbered(count: int, begin: int = 0) -> list[bytes]:
    return [str(number).encode() for number in range(begin, begin + count)]


def offsets(records: Sequence[Record]) -> dict[TopicPartition, int]:
    """What to commit once all of these are handled."""
    return {record.source: record.offset + 1 for record in records}


def values(records: Sequence[Record], partition: int) -> list[bytes | None]:
    return [record.value for record in records if record.partition == partition]


async def next_batch(source: Source, limit: int = 100) -> Batch:
    """The next batch with something in it."""
    async with asyncio.timeout(BOUND):
        while not (batch := await source.fetch(limit)):
            pass
    return batch


async def handle(source: Source, count: int, limit: int = 100) -> list[Record]:
    """Handles and commits as a worker does, until it has had so many records."""
    handled: list[Record] = []
    while len(handled) < count:
        batch = await next_batch(source, limit)
        handled += batch.records
        await source.commit(offsets(batch.records), batch.assignment, within(BOUND))
        source.done(batch.assignment)
    return handled


async def hold(source: Source, count: int) -> tuple[list[Record], int]:
    """Has so many records in hand, all under one number."""
    held: list[Record] = []
    numbers: set[int] = set()
    while len(held) < count:
        batch = await next_batch(source)
        held += batch.records
        numbers.add(batch.assignment)
    assert len(numbers) == 1, "the assignment changed while nobody came or went"
    return held, numbers.pop()


async def quiet(source: Source) -> None:
    """Nothing more comes."""
    async with asyncio.timeout(BOUND):
        batch = await source.fetch(100)
    assert not batch, f"delivered twice: {batch.records}"


async def all_in_hand(world: SourceWorld, *, revoke_bound: float = 5.0) -> tuple[Source, list[Record], int]:
    """A member that is alone, the ten records of each partition that it has in hand, and their number."""
    source = await world.source(revoke_bound=revoke_bound)
    await world.append(0, numbered(10))
    await world.append(1, numbered(10))
    held, number = await hold(source, 20)
    return source, held, number


async def refusal(commit: Awaitable[None]) -> CommitRefused:
    """The refusal that this commit has to meet."""
    return await raised(CommitRefused, commit, "work of an assignment that is over was committed")
