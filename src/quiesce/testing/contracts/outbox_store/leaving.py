"""What a store that is cut off or closed lets go, and that a closed one is closed."""

import asyncio

from quiesce.errors import IntakeClosed
from quiesce.testing.contracts.expectations import closes_twice, raised, within
from quiesce.testing.contracts.outbox_store.world import (
    BOUND,
    Check,
    OutboxWorld,
    event,
    first_to_get,
    ids,
    peek,
    until,
)

_FREE_BOUND = 1.0
"""Seconds in which a claim that was cut off lets its events go."""


async def a_cancelled_claim_leaves_nothing_claimed(world: OutboxWorld) -> None:
    one, other = await world.store(), await world.store()
    written = [event(f"key {n}") for n in range(20)]
    await world.enqueue(*written)
    for turns in (0, 1, 2, 3, 5, 8):
        cancelled = asyncio.ensure_future(one.claim(100))
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled}, timeout=BOUND)
        if cancelled.done() and not cancelled.cancelled():
            await cancelled.result().release()
        await until(ids(written), one, other, within=_FREE_BOUND)
    assert await peek(one, other) == ids(written)


async def closing_frees_an_open_claim_and_says_so(world: OutboxWorld) -> None:
    stores = [await world.store(), await world.store()]
    written = [event(), event()]
    await world.enqueue(*written)
    one, first, others = await first_to_get(100, *stores)
    assert len(first.events) == 2
    closed = await one.close(within(BOUND))
    assert closed.forced
    assert closed.detail
    await until(ids(written), *others, within=_FREE_BOUND)


async def closed_is_closed(world: OutboxWorld) -> None:
    store = await world.store()
    await peek(store)
    await closes_twice(store, BOUND)
    await raised(IntakeClosed, store.claim(1), "a closed store gave a claim")


OF_LEAVING: tuple[Check, ...] = (
    a_cancelled_claim_leaves_nothing_claimed,
    closing_frees_an_open_claim_and_says_so,
    closed_is_closed,
)
