"""Several stores on one outbox: none gets what another has, and together they lose nothing and keep a key's order."""

import asyncio
from uuid import UUID

from quiesce.outbox.outcome import DISPATCHED
from quiesce.outbox.ports import OutboxStore
from quiesce.testing.contracts.outbox_store.world import (
    BOUND,
    Check,
    OutboxWorld,
    all_of,
    claim,
    drain,
    event,
    first_to_get,
    ids,
    peek,
    until,
)


async def no_event_is_in_two_stores(world: OutboxWorld) -> None:
    stores = [await world.store(), await world.store()]
    written = [event(f"key {n}") for n in range(8)]
    await world.enqueue(*written)
    one, first, others = await first_to_get(4, *stores)
    (other,) = others
    second = await claim(other, 100)
    assert not set(ids(second.events)) & set(ids(first.events))
    await first.release()
    await second.release()
    assert sorted(await drain(other, one)) == sorted(ids(written))


async def a_key_in_another_stores_hands_is_held_back(world: OutboxWorld) -> None:
    stores = [await world.store(), await world.store()]
    mine, theirs = event("mine"), event("theirs")
    later_mine, later_theirs = event("mine"), event("theirs")
    written = [mine, theirs, later_mine, later_theirs]
    await world.enqueue(*written)
    _, first, others = await first_to_get(1, *stores)
    (taken,) = first.events
    assert taken.id in ids([mine, theirs])
    (other,) = others
    second = await claim(other)
    overtaking = [one for one in second.events if one.aggregate_id == taken.aggregate_id]
    assert not overtaking, "it would overtake an event in another relay's hands"
    await second.release()
    await first.settle(all_of(first))
    await until(ids(one for one in written if one.id != taken.id), *stores)


async def a_claim_that_is_held_back_comes_later(world: OutboxWorld) -> None:
    stores = [await world.store(), await world.store()]
    written = [event("k") for _ in range(4)]
    await world.enqueue(*written)
    _, first, others = await first_to_get(2, *stores)
    assert await peek(*others) == []
    await first.release()
    await until(ids(written), *stores)


async def many_relays_lose_nothing_and_keep_each_keys_order(world: OutboxWorld) -> None:
    stores = [await world.store() for _ in range(3)]
    written = [event(f"key {n % 4}") for n in range(120)]
    published: list[UUID] = []

    async def relay(store: OutboxStore, number: int) -> None:
        empty = 0
        turn = number
        while empty < 5:
            taken = await claim(store, 3 + turn % 5)
            turn += 1
            if not taken.events:
                empty += 1
                await asyncio.sleep(0.01)
                continue
            empty = 0
            if turn % 7 == 0:
                await taken.release()
                continue
            # The last one of every third claim has no answer.
            answered = taken.events[:-1] if turn % 3 == 0 else taken.events
            published.extend(ids(answered))
            await asyncio.sleep(0.001 * (turn % 4))
            await taken.settle({one.id: DISPATCHED for one in answered})

    await world.enqueue(*written[:60])
    async with asyncio.timeout(4 * BOUND), asyncio.TaskGroup() as running:
        for number, store in enumerate(stores):
            running.create_task(relay(store, number))
        for one in written[60:]:
            await world.enqueue(one)
    async with asyncio.timeout(BOUND):
        # What is shared out may be between two stores, and then a round brings nothing.
        while not set(ids(written)) <= set(published):
            published += await drain(*stores)
            await asyncio.sleep(0.01)
    published += await drain(*stores)
    assert len(published) == len(set(published)), "published twice"
    assert set(published) == set(ids(written)), "not what was written"
    for key in {one.aggregate_id for one in written}:
        of_key = [one.id for one in written if one.aggregate_id == key]
        assert [one for one in published if one in of_key] == of_key, f"{key} is out of order"


OF_SHARING: tuple[Check, ...] = (
    no_event_is_in_two_stores,
    a_key_in_another_stores_hands_is_held_back,
    a_claim_that_is_held_back_comes_later,
    many_relays_lose_nothing_and_keep_each_keys_order,
)
