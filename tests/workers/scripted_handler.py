"""A handler that takes its time and fails where it is told to, and one run of a consumer."""

import asyncio
from collections import defaultdict

from quiesce.inbox.record import Record
from quiesce.lifecycle.backoff import Backoff
from quiesce.testing.manual_stop import ManualStop
from quiesce.workers import Consumer

EVERY_HALF_SECOND = Backoff(first=0.5, ceiling=0.5, draw=lambda: 1.0)


class Handler:
    """Takes `seconds` for a record and fails where told to: `fails[offset]` times."""

    def __init__(self, seconds: float = 0.01, fails: dict[int, int] | None = None) -> None:
        self.seconds = seconds
        self.fails = fails or {}
        self.began: list[int] = []
        self.instants: list[float] = []
        self.handled: list[int] = []
        self.of_key: dict[bytes | None, list[int]] = defaultdict(list)
        self.running = 0
        self.most_running = 0

    async def __call__(self, record: Record) -> None:
        self.began.append(record.offset)
        self.instants.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        if self.fails.get(record.offset, 0) > 0:
            self.fails[record.offset] -= 1
            raise ValueError(f"cannot handle {record}")
        self.handled.append(record.offset)
        self.of_key[record.key].append(record.offset)


async def run(consumer: Consumer, stop_at: float, within: float = 20.0) -> ManualStop:
    stop = ManualStop(consumer.name)
    stop.at(stop_at, within=within)
    await consumer.run(stop)
    assert stop.in_hand() == []
    return stop
