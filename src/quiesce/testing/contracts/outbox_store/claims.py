"""What a claim gives: every event as it was written, in order, within the limit, and none twice."""

import asyncio

from quiesce.lifecycle.phases import Part
from quiesce.outbox.ports import Settled
from quiesce.testing.contracts.expectations import is_a_resource_of
from quiesce.testing.contracts.outbox_store.world import (
    BOUND,
    Check,
    OutboxWorld,
    all_of,
    claim,
    drain,
    event,
    ids,
    in_order,
)


async def is_a_resource_of_part_pools(world: OutboxWorld) -> None:
    is_a_resource_of(Part.POOLS, await world.store())


async def nothing_to_claim_is_nothing(world: OutboxWorld) -> None:
    store = await world.store()
    for _ in range(20):
        # More often than any store has connections: an empty claim occupies nothing.
        assert (await claim(store)).events == []
    assert await (await claim(store)).settle({}) == Settled()
    await (await claim(store)).release()


async def an_event_comes_as_it_was_written(world: OutboxWorld) -> None:
    store = await world.store()
    written = [
        event("ключ \\ 'quoted'", {"n": 1, "text": "été"}),
        event("bytes", b"\x00\xff"),
        event("tombstone", None),
        event("empty", b""),
        event("headers", "text", colour="bleu été", empty=""),
    ]
    await world.enqueue(*written)
    taken = await claim(store)
    for one, given in zip(written, taken.events, strict=True):
        assert (given.id, given.aggregate_id, given.topic, given.type) == (
            one.id,
            one.aggregate_id,
            one.topic,
            one.type,
        )
        assert given.payload == one.encoded_payload()
        assert dict(given.headers) == dict(one.headers)
        assert given.attempts == 0


async def events_come_in_order_and_within_the_limit(world: OutboxWorld) -> None:
    store = await world.store()
    written = [event(f"key {n % 5}") for n in range(30)]
    await world.enqueue(*written)
    first = await claim(store, 10)
    assert len(first.events) == 10
    positions = [one.position for one in first.events]
    assert positions == sorted(set(positions))
    seen = ids(first.events)
    await first.settle(all_of(first))
    seen += await drain(store)
    assert sorted(seen) == sorted(ids(written))
    assert in_order(seen, written)


async def no_event_is_in_two_claims_of_a_store(world: OutboxWorld) -> None:
    store = await world.store()
    written = [event(f"key {n % 3}") for n in range(10)]
    await world.enqueue(*written)
    first, second = await claim(store, 4), await claim(store, 4)
    # One relay publishes its claims in the order in which they were made, so the second may go on in a key.
    assert (len(first.events), len(second.events)) == (4, 4)
    async with asyncio.timeout(BOUND):
        # A store may have them recorded in the order of the claims; then the second waits.
        await asyncio.gather(second.settle(all_of(second)), first.settle(all_of(first)))
    seen = ids(first.events) + ids(second.events) + await drain(store)
    assert sorted(seen) == sorted(ids(written))
    assert in_order(seen, written)


async def a_late_commit_is_neither_skipped_nor_waited_for(world: OutboxWorld) -> None:
    store = await world.store()
    late, other = event("late"), event("other")
    commit = await world.enqueue_late(late)
    await world.enqueue(other)
    assert await drain(store) == [other.id], "it waited for a transaction that may stay open for hours"
    await commit()
    assert await drain(store) == [late.id], "it skipped an event"


async def an_event_given_back_goes_before_later_ones(world: OutboxWorld) -> None:
    store = await world.store()
    first, second, third = event("k"), event("k"), event("k")
    await world.enqueue(first, second)
    one, two = await claim(store, 1), await claim(store, 1)
    await world.enqueue(third)
    await one.settle({})
    # The second claim, with `second`, is still open: `first` is free, and nothing may pass it.
    three = await claim(store)
    assert third.id not in ids(three.events)
    await two.release()
    await three.release()
    assert await drain(store) == [first.id, second.id, third.id]


OF_CLAIMS: tuple[Check, ...] = (
    is_a_resource_of_part_pools,
    nothing_to_claim_is_nothing,
    an_event_comes_as_it_was_written,
    events_come_in_order_and_within_the_limit,
    no_event_is_in_two_claims_of_a_store,
    a_late_commit_is_neither_skipped_nor_waited_for,
    an_event_given_back_goes_before_later_ones,
)
