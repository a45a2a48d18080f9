"""The loops that the relay is compared with: what anybody would write first, and as fast as that goes.

They know no lanes, no stop, no outage, no retry and no metrics. Run as `python -m quiesce.bench.relay_bare`, with a
`Job` on standard input.
"""

import asyncio
import json
import os
import sys
import time
from collections import deque
from typing import Any

import asyncpg
from confluent_kafka import Producer

from quiesce.bench.relay_job import PRODUCER, Job

_READ = (
    "SELECT position, id, aggregate_id, topic, type, payload FROM bare_event "
    "WHERE position > $1 ORDER BY position LIMIT $2"
)
_MOVE = "UPDATE bare_cursor SET last = $1"
_CLAIM = (
    "SELECT position, id, aggregate_id, topic, type, payload FROM bare_event WHERE dispatched_at IS NULL "
    "ORDER BY position LIMIT $1 FOR UPDATE SKIP LOCKED"
)
_MARK = "UPDATE bare_event SET dispatched_at = now() WHERE position = ANY ($1)"
_BOUND = 30.0
"""Seconds without any ack after which the measurement has failed."""


class Page:
    """How many of a page's messages have no ack yet."""

    __slots__ = ("last", "left")

    def __init__(self, last: int, left: int) -> None:
        self.last = last
        self.left = left

    def acked(self, error: object, _: object) -> None:
        if error is not None:
            raise RuntimeError(f"the broker refused a message: {error}")
        self.left -= 1


def produce(producer: Producer, rows: list[Any]) -> Page:
    page = Page(rows[-1][0], len(rows))
    acked = page.acked
    for _, identity, key, topic, kind, payload in rows:
        headers: Any = [("id", str(identity)), ("type", kind)]
        producer.produce(topic, payload, key, headers=headers, on_delivery=acked)
    producer.poll(0)
    return page


def settled(producer: Producer, page: Page) -> None:
    until = time.monotonic() + _BOUND
    while page.left:
        producer.poll(0.01)
        if time.monotonic() > until:
            raise RuntimeError("the broker does not answer")


def flushed(producer: Producer, page: Page) -> None:
    """The same where nothing comes behind it: no time is given to gather more."""
    producer.flush(_BOUND)
    if page.left:
        raise RuntimeError("the broker does not answer")


async def log(job: Job, connection: Any, producer: Producer) -> None:
    """Reads page after page, a few of them in flight, and moves one cursor behind those that are acked."""
    read = await connection.prepare(_READ)
    move = await connection.prepare(_MOVE)
    last, moved = 0, 0
    pages: deque[Page] = deque()
    while moved < job.events:
        rows = await read.fetch(last, job.page) if len(pages) < job.pages else []
        if rows:
            last = rows[-1][0]
            pages.append(produce(producer, rows))
        if not rows or len(pages) >= job.pages:
            settled(producer, pages[0])
        done = None
        while pages and not pages[0].left:
            done = pages.popleft().last
        if done is not None:
            await move.fetch(done)
            if not moved:
                mark("first", events=done)
            moved = done
    mark("moved", events=moved)


async def rows(job: Job, connection: Any, producer: Producer) -> None:
    """Claims, publishes and marks, one page after the other."""
    claim = await connection.prepare(_CLAIM)
    marks = await connection.prepare(_MARK)
    moved = 0
    while moved < job.events:
        async with connection.transaction():
            taken = await claim.fetch(job.page)
            flushed(producer, produce(producer, taken))
            await marks.fetch([row[0] for row in taken])
        if not moved:
            mark("first", events=len(taken))
        moved += len(taken)
    mark("moved", events=moved)


async def main() -> None:
    job = Job.loads(sys.stdin.read())
    producer = Producer({**PRODUCER, "bootstrap.servers": job.broker, "partitioner": "murmur2_random"})
    producer.list_topics(timeout=10)
    connection = await asyncpg.connect(job.dsn)
    mark("up")
    await (log if job.store == "log" else rows)(job, connection, producer)
    await connection.close()


def mark(event: str, **facts: object) -> None:
    """Says it in a line, with the instant and the CPU seconds used until then."""
    line = {"event": event, "at": time.monotonic(), "cpu": time.process_time(), **facts}
    os.write(1, (json.dumps(line) + "\n").encode())


if __name__ == "__main__":
    asyncio.run(main())
