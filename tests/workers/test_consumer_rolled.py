"""Consumers that follow one another, each stopped or robbed of its partitions at some instant: none does work twice."""

import asyncio
import random
from collections import Counter, defaultdict

import pytest
from scripted_handler import run
from scripted_source import MemorySource, record

from quiesce.inbox.beyond import Beyond
from quiesce.inbox.record import Record, TopicPartition
from quiesce.testing import virtual_time
from quiesce.testing.memory_starts import MemoryStarts, StartsLog
from quiesce.workers import Consumer, batches


class Play:
    """One run of lives: records, keys, how long each takes, and when each life ends, all by one seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        keys = self.draw.choice([2, 5, 30])
        self.records = [record(n, partition, self.key(keys)) for n in range(100) for partition in (0, 1)]
        slow = self.draw.choice([0.02, 0.1])
        self.seconds = {
            (one.partition, one.offset): self.draw.random() * (slow if one.key == b"hot" else 0.01)
            for one in self.records
        }
        self.done = Counter[tuple[int, int]]()
        self.of_key = defaultdict[tuple[int, bytes | None], list[int]](list)
        self.committed: dict[TopicPartition, int] = {}
        self.beyond: dict[TopicPartition, Beyond] = {}

    def key(self, keys: int) -> bytes:
        return b"hot" if self.draw.random() < 0.3 else b"k%d" % self.draw.randrange(keys)

    async def one(self, record: Record) -> None:
        await asyncio.sleep(self.seconds[record.partition, record.offset])
        self.note(record)

    async def many(self, records: list[Record]) -> None:
        await asyncio.sleep(0.02 * self.draw.random())
        for one in records:
            self.note(one)

    def note(self, record: Record) -> None:
        self.done[record.partition, record.offset] += 1
        self.of_key[record.partition, record.key].append(record.offset)

    async def life(self, seconds: float, *, revokes: bool) -> None:
        source, log = MemorySource(self.records, revoke_bound=20.0), StartsLog()
        source.committed, source.beyond = dict(self.committed), dict(self.beyond)
        source.rebalance()
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if revokes:
            loop.call_at(at, source.revoke, self.records[0].source)
            loop.call_at(at + self.draw.random() * 0.1, source.revoke, self.records[1].source)
            at += self.draw.choice([0.05, 15.0])
        consumer = Consumer(
            source,
            batches(self.many) if self.draw.random() < 0.3 else self.one,
            concurrency=self.draw.choice([1, 3, 8]),
            batch=self.draw.choice([5, 40]),
            starts=MemoryStarts(log) if self.draw.random() < 0.5 else None,
        )
        await run(consumer, stop_at=at, within=60.0)
        self.committed, self.beyond = dict(source.committed), dict(source.beyond)
        assert not any(row.begun.in_hand for row in log.rows.values()), "what was handed back looks like a death"


@pytest.mark.parametrize("seed", range(20))
def test_K2_whenever_one_goes_the_next_goes_on_behind_all_that_was_done_and_each_key_keeps_its_order(seed: int) -> None:
    async def main() -> None:
        play = Play(seed)
        for _ in range(6):
            await play.life(play.draw.random(), revokes=play.draw.random() < 0.5)
        await play.life(100.0, revokes=False)
        assert len(play.done) == len(play.records)
        assert set(play.done.values()) == {1}
        assert all(offsets == sorted(offsets) for offsets in play.of_key.values())

    virtual_time.run(main())
