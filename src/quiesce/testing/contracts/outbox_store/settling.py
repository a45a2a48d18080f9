"""What settling leaves behind: marks that last, retries that hold their key alone, dead ones that hold nothing."""

import time
from uuid import UUID

from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.outbox.ports import Settled
from quiesce.testing.contracts.outbox_store.world import (
    Check,
    OutboxWorld,
    all_of,
    claim,
    drain,
    event,
    ids,
    peek,
    until,
)


async def what_was_dispatched_never_comes_again(world: OutboxWorld) -> None:
    store = await world.store()
    written = [event(f"key {n}") for n in range(5)]
    await world.enqueue(*written)
    taken = await claim(store)
    assert await taken.settle(all_of(taken)) == Settled(dispatched=5)
    assert await peek(store) == []
    assert {await world.state(one.id) for one in written} == {"dispatched"}


async def what_was_released_comes_again_unchanged(world: OutboxWorld) -> None:
    store = await world.store()
    await world.enqueue(*(event() for _ in range(5)))
    first = await claim(store)
    await first.release()
    second = await claim(store)
    assert second.events == first.events


async def a_half_failed_claim_keeps_its_marks(world: OutboxWorld) -> None:
    store = await world.store()
    written = [event(f"key {n}") for n in range(6)]
    await world.enqueue(*written)
    taken = await claim(store)
    a, b, c, d, *rest = written
    outcomes: dict[UUID, Outcome] = {a.id: DISPATCHED, b.id: Retry("no topic", 60.0), c.id: Dead("too large")}
    outcomes[d.id] = DISPATCHED
    assert await taken.settle(outcomes) == Settled(dispatched=2, retried=1, dead=1, released=2)
    assert await peek(store) == ids(rest)
    states = [await world.state(one.id) for one in written]
    assert states == ["dispatched", "retry", "dead", "dispatched", "waiting", "waiting"]


async def a_retry_holds_its_key_and_no_other(world: OutboxWorld) -> None:
    store = await world.store()
    failed, behind, elsewhere = event("k"), event("k"), event("other")
    await world.enqueue(failed)
    taken = await claim(store)
    await taken.settle({failed.id: Retry("no topic", 0.3)})
    refused_at = time.monotonic()
    await world.enqueue(behind, elsewhere)
    assert await peek(store) == [elsewhere.id]
    await until([failed.id, behind.id, elsewhere.id], store)
    assert time.monotonic() - refused_at > 0.2
    again = await claim(store)
    assert [one.attempts for one in again.events] == [1, 0, 0]
    await again.settle(all_of(again))
    assert await peek(store) == []
    assert await world.state(failed.id) == "dispatched"


async def a_key_in_trouble_fills_no_page(world: OutboxWorld) -> None:
    store = await world.store()
    failed, behind, flows = event("k"), [event("k") for _ in range(50)], event("other")
    await world.enqueue(failed)
    taken = await claim(store)
    await taken.settle({failed.id: Retry("no topic", 60.0)})
    await world.enqueue(*behind, flows)
    assert await peek(store, limit=5) == [flows.id]


async def attempts_are_counted(world: OutboxWorld) -> None:
    store = await world.store()
    await world.enqueue(event())
    for attempts in range(3):
        taken = await claim(store)
        (only,) = taken.events
        assert only.attempts == attempts
        await taken.settle({only.id: Retry("no topic", 0.0)})
    (only,) = (await claim(store)).events
    assert only.attempts == 3


async def an_outage_counts_no_attempt(world: OutboxWorld) -> None:
    store = await world.store()
    await world.enqueue(event())
    for outcome in (Retry("no leader", 0.0, counts=False), Retry("no topic", 0.0), Retry("gone", 0.0, counts=False)):
        taken = await claim(store)
        await taken.settle({taken.events[0].id: outcome})
    (only,) = (await claim(store)).events
    assert only.attempts == 1


async def a_dead_one_never_comes_again_and_holds_nothing(world: OutboxWorld) -> None:
    store = await world.store()
    dead, behind = event("k"), event("k")
    await world.enqueue(dead, behind)
    taken = await claim(store, 1)
    await taken.settle({dead.id: Dead("too large")})
    assert await drain(store) == [behind.id]
    assert await world.state(dead.id) == "dead"


async def a_retried_one_can_die(world: OutboxWorld) -> None:
    store = await world.store()
    dead, behind = event("k"), event("k")
    await world.enqueue(dead, behind)
    taken = await claim(store)
    await taken.settle({dead.id: Retry("no topic", 0.0)})
    taken = await claim(store)
    assert ids(taken.events) == [dead.id, behind.id]
    await taken.settle({dead.id: Dead("no topic, given up")})
    assert await drain(store) == [behind.id]
    assert await world.state(dead.id) == "dead"


OF_SETTLING: tuple[Check, ...] = (
    what_was_dispatched_never_comes_again,
    what_was_released_comes_again_unchanged,
    a_half_failed_claim_keeps_its_marks,
    a_retry_holds_its_key_and_no_other,
    a_key_in_trouble_fills_no_page,
    attempts_are_counted,
    an_outage_counts_no_attempt,
    a_dead_one_never_comes_again_and_holds_nothing,
    a_retried_one_can_die,
)
