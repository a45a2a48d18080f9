"""What a fetch gives: each partition in its order, within the limit, and nothing lost by a cancel."""

import asyncio
import time

from quiesce.errors import IntakeClosed
from quiesce.inbox.record import Record, TopicPartition
from quiesce.lifecycle.phases import Part
from quiesce.testing.contracts.expectations import closes_twice, is_a_resource_of, raised, within
from quiesce.testing.contracts.source.world import (
    BOUND,
    Check,
    SourceWorld,
    handle,
    hold,
    next_batch,
    numbered,
    offsets,
    refusal,
    values,
)


async def is_a_resource_of_part_producers(world: SourceWorld) -> None:
    is_a_resource_of(Part.PRODUCERS, await world.source())


async def partitions_come_in_their_order(world: SourceWorld) -> None:
    source = await world.source()
    await world.append(0, numbered(300))
    await world.append(1, numbered(300, 1000))
    handled = await handle(source, 600)
    assert values(handled, 0) == numbered(300)
    assert values(handled, 1) == numbered(300, 1000)
    assert await world.committed() == {
        TopicPartition(world.topic, 0): 300,
        TopicPartition(world.topic, 1): 300,
    }


async def a_batch_is_at_most_the_limit(world: SourceWorld) -> None:
    source = await world.source()
    await world.append(0, numbered(50))
    sizes: list[int] = []
    while sum(sizes) < 50:
        sizes.append(len((await next_batch(source, limit=7)).records))
    assert max(sizes) <= 7


async def an_empty_batch_comes_within_a_second(world: SourceWorld) -> None:
    source = await world.source()
    began = time.monotonic()
    assert not await source.fetch(10)
    assert time.monotonic() - began < 1.5


async def a_cancelled_fetch_loses_nothing(world: SourceWorld) -> None:
    source = await world.source()
    fetches = [asyncio.ensure_future(source.fetch(10))]
    await world.append(0, numbered(100))
    got: list[Record] = []
    async with asyncio.timeout(BOUND):
        while len(got) < 100:
            # Cancelled at every point it can be at: while it waits, and just as records come.
            await asyncio.wait(fetches, timeout=0.001)
            fetch = fetches.pop()
            fetch.cancel()
            await asyncio.wait({fetch})
            if not fetch.cancelled():
                got += fetch.result().records
            fetches.append(asyncio.ensure_future(source.fetch(10)))
    fetches[0].cancel()
    await asyncio.wait(fetches)
    assert values(got, 0) == numbered(100)


async def a_full_partition_stops_alone(world: SourceWorld) -> None:
    source = await world.source()
    await world.append(0, numbered(50))
    await world.append(1, numbered(50, 1000))
    full = TopicPartition(world.topic, 0)
    flowed: list[Record] = []
    async with asyncio.timeout(BOUND):
        while len(flowed) < 50:
            batch = await source.fetch(7, full=[full])
            flowed += batch.records
        assert not (await source.fetch(7, full=[full])).records
    assert values(flowed, 1) == numbered(50, 1000)
    assert values(await handle(source, 50), 0) == numbered(50)


async def closed_is_closed(world: SourceWorld) -> None:
    source = await world.source()
    await world.append(0, numbered(5))
    held, number = await hold(source, 5)
    await closes_twice(source, BOUND)
    assert not source.ours(number, held[0].source)
    assert source.partitions == frozenset()
    await refusal(source.commit(offsets(held), number, within(BOUND)))
    await raised(IntakeClosed, source.fetch(10), "a closed source was fetched from")


OF_READING: tuple[Check, ...] = (
    is_a_resource_of_part_producers,
    partitions_come_in_their_order,
    a_batch_is_at_most_the_limit,
    an_empty_batch_comes_within_a_second,
    a_cancelled_fetch_loses_nothing,
    a_full_partition_stops_alone,
    closed_is_closed,
)
