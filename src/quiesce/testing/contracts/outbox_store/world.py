"""What the checks of an `OutboxStore` need, and what they do with it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, Protocol
from uuid import UUID

from quiesce.outbox.event import ClaimedEvent, OutboxEvent
from quiesce.outbox.outcome import DISPATCHED, Outcome
from quiesce.outbox.ports import Claim, OutboxStore

BOUND = 5.0
"""Seconds after which a check says that something hangs."""

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
    async with asyncio.timeout(BOUND):
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


async def until(expected: Sequence[UUID], *stores: OutboxStore, within: float = BOUND) -> None:
    """Waits until claims of all these stores would give exactly this."""
    deadline = time.monotonic() + within
    while (seen := await peek(*stores)) != list(expected):
        assert time.monotonic() < deadline, f"a claim gives {seen}, not {list(expected)}"
        await asyncio.sleep(0.005)


async def first_to_get(limit: int, *stores: OutboxStore) -> tuple[OutboxStore, Claim, list[OutboxStore]]:
    """The first of these stores whose claim gives something, its claim, and the other stores."""
    deadline = time.monotonic() + BOUND
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
