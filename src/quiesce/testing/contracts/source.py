"""The contract of `Source`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from quiesce.errors import CommitRefused, IntakeClosed
from quiesce.inbox.beyond import Beyond
from quiesce.inbox.events import AssignmentChanged
from quiesce.inbox.ports import Source
from quiesce.inbox.record import Batch, Record, TopicPartition
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part

_BOUND = 15.0
"""Seconds after which a check says that something hangs. A group takes seconds to agree."""
_SHORT = 0.3
_AT_ONCE = 5.0
"""Seconds in which partitions of a member that has left reach another; without leaving it takes a session."""


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


def within(seconds: float) -> Deadline:
    return Deadline(time.monotonic() + seconds)


def numbered(count: int, begin: int = 0) -> list[bytes]:
    return [str(number).encode() for number in range(begin, begin + count)]


def offsets(records: Sequence[Record]) -> dict[TopicPartition, int]:
    """What to commit once all of these are handled."""
    return {record.source: record.offset + 1 for record in records}


def values(records: Sequence[Record], partition: int) -> list[bytes | None]:
    return [record.value for record in records if record.partition == partition]


async def next_batch(source: Source, limit: int = 100) -> Batch:
    """The next batch with something in it."""
    async with asyncio.timeout(_BOUND):
        while not (batch := await source.fetch(limit)):
            pass
    return batch


async def handle(source: Source, count: int, limit: int = 100) -> list[Record]:
    """Handles and commits as a worker does, until it has had so many records."""
    handled: list[Record] = []
    while len(handled) < count:
        batch = await next_batch(source, limit)
        handled += batch.records
        await source.commit(offsets(batch.records), batch.assignment, within(_BOUND))
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


async def refusal(commit: Awaitable[None]) -> CommitRefused:
    """The refusal that this commit has to meet."""
    try:
        await commit
    except CommitRefused as refused:
        return refused
    raise AssertionError("work of an assignment that is over was committed")


async def is_a_resource_of_part_producers(world: SourceWorld) -> None:
    source = await world.source()
    assert source.name
    assert source.part is Part.PRODUCERS


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
    async with asyncio.timeout(_BOUND):
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


async def what_is_not_committed_comes_to_the_next_member(world: SourceWorld) -> None:
    first = await world.source()
    await world.append(0, numbered(20))
    await hold(first, 20)
    await first.close(within(_BOUND))
    assert await world.committed() == {}, "closing committed what nobody said was handled"
    assert values(await handle(await world.source(), 20), 0) == numbered(20)


async def what_is_committed_does_not_come_again(world: SourceWorld) -> None:
    first = await world.source()
    await world.append(0, numbered(20))
    held, number = await hold(first, 20)
    await first.commit({held[0].source: 12}, number, within(_BOUND))
    await first.close(within(_BOUND))
    assert values(await handle(await world.source(), 8), 0) == numbered(8, 12)


async def what_is_put_away_unfinished_comes_again(world: SourceWorld) -> None:
    """Else the next commit of the partition would pass over it."""
    source = await world.source()
    await world.append(0, numbered(20))
    batch = await next_batch(source, limit=10)
    half = len(batch.records) // 2
    await source.commit({batch.records[0].source: half}, batch.assignment, within(_BOUND))
    source.done(batch.assignment)
    again = values(await handle(source, 20 - half), 0)
    assert again == numbered(20 - half, half), f"after {half} of {len(batch.records)}: {again}"


async def what_is_done_behind_the_offset_does_not_come_again(world: SourceWorld) -> None:
    """Neither to the member that did it nor to any after it, however often one of them commits."""
    first = await world.source()
    await world.append(0, numbered(10))
    held, number = await hold(first, 10)
    partition = held[0].source
    beyond = Beyond.all_but(2, 10, [2, 3, 6, 9])
    await first.commit({partition: 2}, number, within(_BOUND), beyond={partition: beyond})
    first.done(number)
    held, number = await hold(first, 4)
    assert [record.offset for record in held] == [2, 3, 6, 9]
    await first.commit({partition: 3}, number, within(_BOUND))
    await first.close(within(_BOUND))
    second = await world.source()
    held, number = await hold(second, 3)
    assert [record.offset for record in held] == [3, 6, 9]
    await second.commit({partition: 3}, number, within(_BOUND), beyond={partition: Beyond.all_but(3, 7, [3])})
    await second.commit({partition: 7}, number, within(_BOUND))
    assert await world.committed() == {partition: 9}, "all in front of it is done"
    await second.close(within(_BOUND))
    third = await world.source()
    assert [record.offset for record in await handle(third, 1)] == [9]
    await world.append(0, numbered(3, 10))
    assert values(await handle(third, 3), 0) == numbered(3, 10)


async def what_is_put_away_finished_does_not(world: SourceWorld) -> None:
    source = await world.source()
    await world.append(0, numbered(20))
    await handle(source, 20, limit=3)
    source.done((await source.fetch(10)).assignment)
    await world.append(0, numbered(5, 20))
    assert values(await handle(source, 5), 0) == numbered(5, 20)


async def what_was_read_ahead_goes_with_its_partition(world: SourceWorld) -> None:
    first = await world.source()
    await world.append(0, numbered(10))
    await world.append(1, numbered(10))
    handled = await handle(first, 1, limit=1)
    second = await world.source()
    theirs, ours = await handle(second, 1), list(handled)
    async with asyncio.timeout(_BOUND):
        while len(ours) + len(theirs) < 20:
            for source, got in ((first, ours), (second, theirs)):
                if batch := await source.fetch(100):
                    got += batch.records
                    await source.commit(offsets(batch.records), batch.assignment, within(_BOUND))
                    source.done(batch.assignment)
    await _quiet(first)
    everything = [(record.partition, record.offset) for record in ours + theirs]
    assert sorted(everything) == [(partition, offset) for partition in (0, 1) for offset in range(10)]


async def _quiet(source: Source) -> None:
    """Nothing more comes."""
    async with asyncio.timeout(_BOUND):
        batch = await source.fetch(100)
    assert not batch, f"delivered twice: {batch.records}"


async def a_member_that_leaves_hands_over_at_once(world: SourceWorld) -> None:
    first = await world.source()
    await world.append(0, numbered(10))
    await handle(first, 10)
    second = await world.source()
    assert not (await first.close(within(_BOUND))).forced
    began = time.monotonic()
    await world.append(0, numbered(10, 10))
    await world.append(1, numbered(10))
    handled = await handle(second, 20)
    assert time.monotonic() - began < _AT_ONCE
    assert values(handled, 0) == numbered(10, 10)


async def a_rebalance_waits_for_the_batch_in_hand(world: SourceWorld) -> None:
    first = await world.source()
    await world.append(0, numbered(10))
    await world.append(1, numbered(10))
    held, number = await hold(first, 20)
    second = await world.source()
    fetch = asyncio.ensure_future(second.fetch(100))
    await asyncio.wait({fetch}, timeout=2 * _SHORT)
    # The commit is taken while the group waits for this very member.
    await first.commit(offsets(held), number, within(_BOUND))
    first.done(number)
    await asyncio.wait({fetch})
    assert not fetch.result(), "the second member got what the first had in hand"
    await world.append(0, numbered(1, 10))
    await world.append(1, numbered(1, 10))
    both = await asyncio.gather(next_batch(first), next_batch(second))
    assert [values(batch.records, batch.records[0].partition) for batch in both] == [[b"10"], [b"10"]]


async def past_its_bound_a_batch_is_refused_and_what_stays_is_not(world: SourceWorld) -> None:
    first = await world.source(revoke_bound=_SHORT)
    await world.append(0, numbered(10))
    await world.append(1, numbered(10))
    held, number = await hold(first, 20)
    second = await world.source()
    gone = (await next_batch(second)).records[0].source
    refused = await refusal(first.commit(offsets(held), number, within(_BOUND)))
    assert f"{gone.topic}[{gone.partition}]" in str(refused)
    (kept,) = {record.source for record in held} - {gone}
    assert await world.committed() == {kept: 10}, "what stayed was not committed, or what went was"


async def put_away_past_its_bound_what_stays_comes_again(world: SourceWorld) -> None:
    first = await world.source(revoke_bound=_SHORT)
    await world.append(0, numbered(10))
    await world.append(1, numbered(10))
    held, number = await hold(first, 20)
    second = await world.source()
    theirs = await handle(second, 10)
    first.done(number)
    ours = await handle(first, 10)
    assert {record.partition for record in theirs} != {record.partition for record in ours}
    assert values(ours, ours[0].partition) == values(theirs, theirs[0].partition) == numbered(10)
    assert len(ours) + len(theirs) == len(held)


async def a_number_grows_and_an_old_one_stays_refused(world: SourceWorld) -> None:
    """The partition goes and comes back: what began before is late for good."""
    first = await world.source(revoke_bound=_SHORT)
    await world.append(0, numbered(10))
    await world.append(1, numbered(10))
    held, number = await hold(first, 20)
    second = await world.source()
    gone = (await next_batch(second)).records[0].source
    await second.close(within(_BOUND))
    back = await next_batch(first)
    while gone not in offsets(back.records):
        back = await next_batch(first)
    assert back.assignment > number
    await refusal(first.commit({gone: 10}, number, within(_BOUND)))
    assert gone not in await world.committed()
    assert held


async def a_full_partition_stops_alone(world: SourceWorld) -> None:
    source = await world.source()
    await world.append(0, numbered(50))
    await world.append(1, numbered(50, 1000))
    full = TopicPartition(world.topic, 0)
    flowed: list[Record] = []
    async with asyncio.timeout(_BOUND):
        while len(flowed) < 50:
            batch = await source.fetch(7, full=[full])
            flowed += batch.records
        assert not (await source.fetch(7, full=[full])).records
    assert values(flowed, 1) == numbered(50, 1000)
    assert values(await handle(source, 50), 0) == numbered(50)


async def one_partition_is_put_away_alone(world: SourceWorld) -> None:
    source = await world.source()
    await world.append(0, numbered(10))
    await world.append(1, numbered(10))
    _, number = await hold(source, 20)
    put_away = TopicPartition(world.topic, 1)
    source.done(number, [put_away])
    again, later = await hold(source, 10)
    assert values(again, 1) == numbered(10)
    await source.commit({put_away: 10}, later, within(_BOUND))
    await _quiet(source)
    source.done(number)
    assert offsets(await handle(source, 10)) == {TopicPartition(world.topic, 0): 10}


async def what_leaves_is_told_and_may_still_be_committed(world: SourceWorld) -> None:
    """Drain first, fence second."""
    first = await world.source()
    changed = asyncio.Event()
    first.watch(changed.set)
    await world.append(0, numbered(10))
    await world.append(1, numbered(10))
    held, number = await hold(first, 20)
    assert first.partitions == offsets(held).keys()
    assert first.leaving == frozenset()
    first.news("told")
    changed.clear()
    second = await world.source()
    async with asyncio.timeout(_BOUND):
        while not first.leaving:
            await changed.wait()
            changed.clear()
    (gone,) = first.leaving
    assert first.ours(number, gone)
    await world.append(gone.partition, numbered(5, 10))
    await _quiet(first)
    # Nobody says that it is done: committed to its end it is out of hand.
    await first.commit({gone: 10}, number, within(_BOUND))
    theirs = await handle(second, 5)
    assert offsets(theirs) == {gone: 15}
    assert values(theirs, gone.partition) == numbered(5, 10), "it was given back before its commit"
    async with asyncio.timeout(_BOUND):
        while first.leaving or gone in first.partitions:
            await changed.wait()
            changed.clear()
    assert not first.ours(number, gone)
    (kept,) = first.partitions
    assert first.ours(number, kept)
    await first.commit({kept: 10}, number, within(_BOUND))
    counts = [event.partitions for event in first.news("told") if isinstance(event, AssignmentChanged)]
    assert counts[-1] == 1
    assert first.news("told") == []


async def closed_is_closed(world: SourceWorld) -> None:
    source = await world.source()
    await world.append(0, numbered(5))
    held, number = await hold(source, 5)
    assert not (await source.close(within(_BOUND))).forced
    assert not (await source.close(within(_BOUND))).forced
    assert not source.ours(number, held[0].source)
    assert source.partitions == frozenset()
    await refusal(source.commit(offsets(held), number, within(_BOUND)))
    try:
        await source.fetch(10)
    except IntakeClosed:
        return
    raise AssertionError("a closed source was fetched from")


OF_REBALANCES: tuple[Check, ...] = (
    what_was_read_ahead_goes_with_its_partition,
    a_member_that_leaves_hands_over_at_once,
    a_rebalance_waits_for_the_batch_in_hand,
    past_its_bound_a_batch_is_refused_and_what_stays_is_not,
    put_away_past_its_bound_what_stays_comes_again,
    a_number_grows_and_an_old_one_stays_refused,
    what_leaves_is_told_and_may_still_be_committed,
)
"""Those that depend on how members and group agree."""

CHECKS: tuple[Check, ...] = (
    is_a_resource_of_part_producers,
    partitions_come_in_their_order,
    a_batch_is_at_most_the_limit,
    an_empty_batch_comes_within_a_second,
    a_cancelled_fetch_loses_nothing,
    what_is_not_committed_comes_to_the_next_member,
    what_is_committed_does_not_come_again,
    what_is_put_away_unfinished_comes_again,
    what_is_done_behind_the_offset_does_not_come_again,
    what_is_put_away_finished_does_not,
    a_full_partition_stops_alone,
    one_partition_is_put_away_alone,
    *OF_REBALANCES,
    closed_is_closed,
)
