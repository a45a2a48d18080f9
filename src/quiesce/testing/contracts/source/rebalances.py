"""What members of a group may count on while partitions go from one to another."""

import asyncio
import time

from quiesce.inbox.events import AssignmentChanged
from quiesce.testing.contracts.expectations import within
from quiesce.testing.contracts.source.world import (
    BOUND,
    Check,
    SourceWorld,
    all_in_hand,
    handle,
    hold,
    next_batch,
    numbered,
    offsets,
    quiet,
    refusal,
    values,
)

_SHORT = 0.3
_AT_ONCE = 5.0
"""Seconds in which partitions of a member that has left reach another; without leaving it takes a session."""


async def what_was_read_ahead_goes_with_its_partition(world: SourceWorld) -> None:
    first = await world.source()
    await world.append(0, numbered(10))
    await world.append(1, numbered(10))
    handled = await handle(first, 1, limit=1)
    second = await world.source()
    theirs, ours = await handle(second, 1), list(handled)
    async with asyncio.timeout(BOUND):
        while len(ours) + len(theirs) < 20:
            for source, got in ((first, ours), (second, theirs)):
                if batch := await source.fetch(100):
                    got += batch.records
                    await source.commit(offsets(batch.records), batch.assignment, within(BOUND))
                    source.done(batch.assignment)
    await quiet(first)
    everything = [(record.partition, record.offset) for record in ours + theirs]
    assert sorted(everything) == [(partition, offset) for partition in (0, 1) for offset in range(10)]


async def a_member_that_leaves_hands_over_at_once(world: SourceWorld) -> None:
    first = await world.source()
    await world.append(0, numbered(10))
    await handle(first, 10)
    second = await world.source()
    assert not (await first.close(within(BOUND))).forced
    began = time.monotonic()
    await world.append(0, numbered(10, 10))
    await world.append(1, numbered(10))
    handled = await handle(second, 20)
    assert time.monotonic() - began < _AT_ONCE
    assert values(handled, 0) == numbered(10, 10)


async def a_rebalance_waits_for_the_batch_in_hand(world: SourceWorld) -> None:
    first, held, number = await all_in_hand(world)
    second = await world.source()
    fetch = asyncio.ensure_future(second.fetch(100))
    await asyncio.wait({fetch}, timeout=2 * _SHORT)
    # The commit is taken while the group waits for this very member.
    await first.commit(offsets(held), number, within(BOUND))
    first.done(number)
    await asyncio.wait({fetch})
    assert not fetch.result(), "the second member got what the first had in hand"
    await world.append(0, numbered(1, 10))
    await world.append(1, numbered(1, 10))
    both = await asyncio.gather(next_batch(first), next_batch(second))
    assert [values(batch.records, batch.records[0].partition) for batch in both] == [[b"10"], [b"10"]]


async def past_its_bound_a_batch_is_refused_and_what_stays_is_not(world: SourceWorld) -> None:
    first, held, number = await all_in_hand(world, revoke_bound=_SHORT)
    second = await world.source()
    gone = (await next_batch(second)).records[0].source
    refused = await refusal(first.commit(offsets(held), number, within(BOUND)))
    assert f"{gone.topic}[{gone.partition}]" in str(refused)
    (kept,) = {record.source for record in held} - {gone}
    assert await world.committed() == {kept: 10}, "what stayed was not committed, or what went was"


async def put_away_past_its_bound_what_stays_comes_again(world: SourceWorld) -> None:
    first, held, number = await all_in_hand(world, revoke_bound=_SHORT)
    second = await world.source()
    theirs = await handle(second, 10)
    first.done(number)
    ours = await handle(first, 10)
    assert {record.partition for record in theirs} != {record.partition for record in ours}
    assert values(ours, ours[0].partition) == values(theirs, theirs[0].partition) == numbered(10)
    assert len(ours) + len(theirs) == len(held)


async def a_number_grows_and_an_old_one_stays_refused(world: SourceWorld) -> None:
    """The partition goes and comes back: what began before is late for good."""
    first, _, number = await all_in_hand(world, revoke_bound=_SHORT)
    second = await world.source()
    gone = (await next_batch(second)).records[0].source
    await second.close(within(BOUND))
    back = await next_batch(first)
    while gone not in offsets(back.records):
        back = await next_batch(first)
    assert back.assignment > number
    await refusal(first.commit({gone: 10}, number, within(BOUND)))
    assert gone not in await world.committed()


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
    async with asyncio.timeout(BOUND):
        while not first.leaving:
            await changed.wait()
            changed.clear()
    (gone,) = first.leaving
    assert first.ours(number, gone)
    await world.append(gone.partition, numbered(5, 10))
    await quiet(first)
    # Nobody says that it is done: committed to its end it is out of hand.
    await first.commit({gone: 10}, number, within(BOUND))
    theirs = await handle(second, 5)
    assert offsets(theirs) == {gone: 15}
    assert values(theirs, gone.partition) == numbered(5, 10), "it was given back before its commit"
    async with asyncio.timeout(BOUND):
        while first.leaving or gone in first.partitions:
            await changed.wait()
            changed.clear()
    assert not first.ours(number, gone)
    (kept,) = first.partitions
    assert first.ours(number, kept)
    await first.commit({kept: 10}, number, within(BOUND))
    counts = [event.partitions for event in first.news("told") if isinstance(event, AssignmentChanged)]
    assert counts[-1] == 1
    assert first.news("told") == []


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
