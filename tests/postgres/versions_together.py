"""Stores of two versions on one table: each claims, and what it would publish is written down."""

import asyncio
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from quiesce.outbox.event import OutboxEvent
from quiesce.outbox.outcome import DISPATCHED, Outcome, Retry
from quiesce.outbox.ports import OutboxStore


@dataclass
class Together:
    """What all of them have published, and how many events each kind of store has claimed."""

    published: list[UUID] = field(default_factory=list)
    of: dict[str, int] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def relay(self, store: OutboxStore, random: Random) -> None:
        """Claims until `done`. Now and then an event is refused, and its key waits."""
        while not self.done.is_set():
            claim = await store.claim(random.choice([1, 5, 20]))
            if not claim.events:
                await asyncio.sleep(0.002)
                continue
            kind = type(store).__name__
            self.of[kind] = self.of.get(kind, 0) + len(claim.events)
            outcomes: dict[UUID, Outcome] = {}
            held: set[str] = set()
            for one in claim.events:
                if one.aggregate_id in held:
                    continue
                if random.random() < 0.05:
                    held.add(one.aggregate_id)
                    outcomes[one.id] = Retry("no leader", 0.0)
                else:
                    outcomes[one.id] = DISPATCHED
                    self.published.append(one.id)
            await asyncio.sleep(random.choice([0, 0.001]))
            await claim.settle(outcomes)

    def check(self, written: list[OutboxEvent]) -> None:
        """Each was published once, and those of a key in the order in which they were written."""
        assert len(self.published) == len(set(self.published)), "published twice"
        assert set(self.published) == {one.id for one in written}, "lost"
        for key in {one.aggregate_id for one in written}:
            expected = [one.id for one in written if one.aggregate_id == key]
            wanted = set(expected)
            assert [one for one in self.published if one in wanted] == expected, f"{key} is out of order"
