"""The contract of `OutboxStore`.

Two kinds of store fulfil it. In one every store may claim every event; in the other each store works on a share of the
keys, and gets its share of those when another store leaves. So what concerns several stores is asked of all of them
together, and order is asked for within a key and within a claim, not between claims.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, Protocol
from uuid import UUID

from quiesce.errors import IntakeClosed
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.outbox.event import ClaimedEvent, OutboxEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.outbox.ports import Claim, OutboxStore, Settled

_BOUND = 5.0
"""Seconds after which a check says that something hangs."""
_FREE_BOUND = 1.0
"""Seconds in which a claim that was cut off lets its events go."""

State = Literal["waiting", "retry", "dispatched", "dead"]


class OutboxWorld(Protocol):
    """What a check needs of an adapter: one empty outbox, and stores that work on it."""

    async def store(self) -> OutboxStore:
        """A new store, open, as a relay of its own would have it. The world closes it if the check does not."""
        ...

    async def enqueue(self, *events: OutboxEvent) -> None:
        """Writes the events in one transaction and commits it."""
        ...

    async def enqueue_late(self, event: OutboxEvent) -> Callable[[], Awaitable[None]]:
        """Writes the event, so that it has its position, and returns what commits it."""
        ...

    async def state(self, event_id: UUID) -> State:
        """What the outbox says of the event. Claimed or not makes no difference."""
        ...


Check = Callable[[OutboxWorld], Awaitable[None]]


def event(key: str = "k", payload: object = b"{}", **headers: str) -> OutboxEvent:
    return OutboxEvent("orders", key, "Placed", payload, headers)


def ids(events: Iterable[ClaimedEvent | OutboxEvent]) -> list[UUID]:
    return [one.id for one in events]


def all_of(claim: Claim, outcome: Outcome = DISPATCHED) -> dict[UUID, Outcome]:
    return {one.id: outcome for one in claim.events}


async def claim(store: OutboxStore, limit: int = 100) -> Claim:
    async with asyncio.timeout(_BOUND):
        return await store.claim(limit)


async def peek(*stores: OutboxStore, limit: int = 100) -> list[UUID]:
    """What claims of all these stores would give now, in the order of position."""
    taken = [await claim(store, limit) for store in stores]
    for one in taken:
        await one.release()
    seen: list[ClaimedEvent] = [event for one in taken for event in one.events]
    seen.sort(key=lambda event: event.position)
    return ids(seen)


async def drain(*stores: OutboxStore) -> list[UUID]:
    """Claims and marks until nothing more comes."""
    seen: list[UUID] = []
    came = True
    while came:
        came = False
        for store in stores:
            taken = await claim(store)
            if taken.events:
                came = True
                seen += ids(taken.events)
                await taken.settle(all_of(taken))
    return seen


async def until(expected: Sequence[UUID], *stores: OutboxStore, within: float = _BOUND) -> None:
    """Waits until claims of all these stores would give exactly this."""
    deadline = time.monotonic() + within
    while (seen := await peek(*stores)) != list(expected):
        assert time.monotonic() < deadline, f"a claim gives {seen}, not {list(expected)}"
        await asyncio.sleep(0.005)


async def first_to_get(limit: int, *stores: OutboxStore) -> tuple[OutboxStore, Claim, list[OutboxStore]]:
    """The first of these stores whose claim gives something, its claim, and the other stores."""
    deadline = time.monotonic() + _BOUND
    while True:
        for store in stores:
            taken = await claim(store, limit)
            if taken.events:
                return store, taken, [other for other in stores if other is not store]
            await taken.release()
        assert time.monotonic() < deadline, "no store gives anything"
        await asyncio.sleep(0.005)


def in_order(seen: Iterable[UUID], written: Sequence[OutboxEvent]) -> bool:
    """Whether the events of each key come in the order in which they were written."""
    place = {one.id: number for number, one in enumerate(written)}
    last: dict[str, int] = {}
    for number in map(place.__getitem__, seen):
        key = written[number].aggregate_id
        if number < last.get(key, -1):
            return False
        last[key] = number
    return True


async def is_a_resource_of_part_pools(world: OutboxWorld) -> None:
    store = await world.store()
    assert store.name
    assert store.part is Part.POOLS


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


async def no_event_is_in_two_claims_of_a_store(world: OutboxWorld) -> None:
    store = await world.store()
    written = [event(f"key {n % 3}") for n in range(10)]
    await world.enqueue(*written)
    first, second = await claim(store, 4), await claim(store, 4)
    # One relay publishes its claims in the order in which they were made, so the second may go on in a key.
    assert (len(first.events), len(second.events)) == (4, 4)
    async with asyncio.timeout(_BOUND):
        # A store may have them recorded in the order of the claims; then the second waits.
        await asyncio.gather(second.settle(all_of(second)), first.settle(all_of(first)))
    seen = ids(first.events) + ids(second.events) + await drain(store)
    assert sorted(seen) == sorted(ids(written))
    assert in_order(seen, written)


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


async def a_cancelled_claim_leaves_nothing_claimed(world: OutboxWorld) -> None:
    one, other = await world.store(), await world.store()
    written = [event(f"key {n}") for n in range(20)]
    await world.enqueue(*written)
    for turns in (0, 1, 2, 3, 5, 8):
        cancelled = asyncio.ensure_future(one.claim(100))
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled}, timeout=_BOUND)
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
    closed = await one.close(Deadline(time.monotonic() + _BOUND))
    assert closed.forced
    assert closed.detail
    await until(ids(written), *others, within=_FREE_BOUND)


async def closed_is_closed(world: OutboxWorld) -> None:
    store = await world.store()
    await peek(store)
    assert not (await store.close(Deadline(time.monotonic() + _BOUND))).forced
    assert not (await store.close(Deadline(time.monotonic() + _BOUND))).forced
    try:
        await store.claim(1)
    except IntakeClosed:
        return
    raise AssertionError("a closed store gave a claim")


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
    async with asyncio.timeout(4 * _BOUND), asyncio.TaskGroup() as running:
        for number, store in enumerate(stores):
            running.create_task(relay(store, number))
        for one in written[60:]:
            await world.enqueue(one)
    published += await drain(*stores)
    assert len(published) == len(set(published)), "published twice"
    assert set(published) == set(ids(written)), "lost"
    for key in {one.aggregate_id for one in written}:
        of_key = [one.id for one in written if one.aggregate_id == key]
        assert [one for one in published if one in of_key] == of_key, f"{key} is out of order"


CHECKS: tuple[Check, ...] = (
    is_a_resource_of_part_pools,
    nothing_to_claim_is_nothing,
    an_event_comes_as_it_was_written,
    events_come_in_order_and_within_the_limit,
    what_was_dispatched_never_comes_again,
    what_was_released_comes_again_unchanged,
    a_half_failed_claim_keeps_its_marks,
    no_event_is_in_two_claims_of_a_store,
    no_event_is_in_two_stores,
    a_key_in_another_stores_hands_is_held_back,
    a_claim_that_is_held_back_comes_later,
    a_retry_holds_its_key_and_no_other,
    a_key_in_trouble_fills_no_page,
    attempts_are_counted,
    an_outage_counts_no_attempt,
    a_dead_one_never_comes_again_and_holds_nothing,
    a_retried_one_can_die,
    a_late_commit_is_neither_skipped_nor_waited_for,
    an_event_given_back_goes_before_later_ones,
    a_cancelled_claim_leaves_nothing_claimed,
    closing_frees_an_open_claim_and_says_so,
    closed_is_closed,
    many_relays_lose_nothing_and_keep_each_keys_order,
)
