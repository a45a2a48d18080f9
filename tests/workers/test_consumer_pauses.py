"""Back-pressure through rebalances: which partitions rest is compared with which ought to, after every event."""

import asyncio
import random

import pytest
from scripted_handler import run
from scripted_source import MemorySource, record

from quiesce.inbox.record import Record, TopicPartition
from quiesce.testing import virtual_time
from quiesce.workers import Consumer

PARTITIONS = [TopicPartition("products", number) for number in range(4)]
SETTLES = 3.0
"""Seconds: a revoke takes one, an idle fetch one, and a fence cancels within that."""


class Play:
    """A consumer whose handlers are held up partition by partition, while partitions go and come, all by one seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.source = MemorySource([record(0, one.partition) for one in PARTITIONS], revoke_bound=1.0)
        self.open = {one: asyncio.Event() for one in PARTITIONS}
        self.away: set[TopicPartition] = set()
        self.compared = 0
        self.paused: set[TopicPartition] = set()
        for event in self.open.values():
            event.set()

    async def produce(self) -> None:
        """More than a window of each partition in the time in which things settle."""
        for n in range(1, 550):
            await asyncio.sleep(SETTLES / 20)
            self.source.records = [*self.source.records, *(record(n, one.partition) for one in PARTITIONS)]

    async def handle(self, one: Record) -> None:
        await self.open[one.source].wait()

    def happens(self) -> None:
        one = self.draw.choice(PARTITIONS)
        match self.draw.choice(["block", "block", "block", "open", "rebalance", "rebalance", "revoke", "lose"]):
            case "block":
                self.open[one].clear()
            case "open":
                self.open[one].set()
            case "rebalance":
                self.source.rebalance(one)
                self.away.discard(one)
            case "revoke" if one not in self.away:
                self.source.revoke(one)
                self.away.add(one)
            case "lose" if one not in self.away:
                self.source.lose(one)
                self.away.add(one)

    def compare(self) -> None:
        """Of what is ours, just those rest that are held up: their window is full, and that of no other is."""
        ours = set(PARTITIONS) - self.away
        resting = self.source.fulls[-1] & ours
        assert resting == {one for one in ours if not self.open[one].is_set()}
        self.compared += 1
        self.paused |= resting


@pytest.mark.parametrize("seed", range(5))
def test_K15_what_rests_is_what_is_full_after_every_rebalance_and_nothing_rests_for_ever(seed: int) -> None:
    async def main() -> None:
        play = Play(seed)

        async def script() -> None:
            for _ in range(12):
                await asyncio.sleep(SETTLES)
                play.happens()
                await asyncio.sleep(SETTLES)
                play.compare()
            for one in PARTITIONS:
                play.open[one].set()
            play.source.rebalance(*play.away)
            before = dict(play.source.committed)
            play.away.clear()
            await asyncio.sleep(SETTLES)
            play.compare()
            assert all(play.source.committed.get(one, 0) > before.get(one, 0) for one in PARTITIONS), "one stands"

        scripted, producing = asyncio.ensure_future(script()), asyncio.ensure_future(play.produce())
        await run(Consumer(play.source, play.handle, concurrency=8, batch=10, in_flight=10), stop_at=90.0, within=30.0)
        await asyncio.gather(scripted, producing)
        assert play.compared == 13
        assert play.paused, "back-pressure was never needed"

    virtual_time.run(main())
