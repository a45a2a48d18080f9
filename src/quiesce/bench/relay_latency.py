"""From commit to consumer: a writer and a consumer around a relay that runs in a process of its own."""

import asyncio
import statistics
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from confluent_kafka import Consumer, TopicPartition

from quiesce.bench.processes import Measured
from quiesce.bench.relay_job import Job
from quiesce.errors import StartError
from quiesce.outbox.event import OutboxEvent
from quiesce.postgres import connect, enqueue

_WARM_UP = 1.0
"""Seconds of load that are not counted."""
_ARRIVAL_BOUND = 10.0
_KEYS = 100


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from the return of COMMIT to the consumer; shares of one core that the relay used."""

    p50: float
    p99: float
    events: int
    busy_share: float
    idle_share: float


class Arrivals:
    """Reads the topic in a thread and notes when each event came. A context manager."""

    def __init__(self, broker: str, topic: str, partitions: int) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker,
                "group.id": "bench",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 500,
                "fetch.queue.backoff.ms": 1,
                "log_level": 0,
            }
        )
        ends = [
            TopicPartition(topic, number, self._consumer.get_watermark_offsets(TopicPartition(topic, number))[1])
            for number in range(partitions)
        ]
        self._consumer.assign(ends)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, name="bench-consumer", daemon=True)
        self.at: dict[UUID, float] = {}
        self.doubled = 0
        """Messages whose event had come before."""

    def __enter__(self) -> "Arrivals":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(5)
        self._consumer.close()

    def wait_for(self, committed: Collection[UUID]) -> None:
        """Raises StartError when some of them have not come within 10 seconds."""
        until = time.monotonic() + _ARRIVAL_BOUND
        while missing := len([one for one in committed if one not in self.at]):
            if time.monotonic() > until:
                raise StartError(f"{missing} of {len(committed)} events did not arrive in {_ARRIVAL_BOUND:g} s")
            time.sleep(0.01)

    def _read(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            now = time.monotonic()
            headers: Any = message.headers() or []
            event_id = UUID(dict(headers)["id"].decode())
            self.doubled += event_id in self.at
            self.at.setdefault(event_id, now)


def measure_latency(job: Job, partitions: int, rate: float, seconds: float) -> Latency:
    """One relay with an otherwise empty outbox, `rate` transactions a second of one event each.

    Raises:
        StartError: events did not arrive.
    """
    with Measured.module("quiesce.bench.relay_subject", job.dumps()) as relay:
        relay.heard("up")
        with Arrivals(job.broker, job.topic, partitions) as arrivals:
            used = relay.cpu()
            began = time.monotonic()
            committed = asyncio.run(write(job, rate, seconds + _WARM_UP))
            busy = (relay.cpu() - used) / (time.monotonic() - began)
            arrivals.wait_for(committed)
        used, began = relay.cpu(), time.monotonic()
        time.sleep(min(seconds, 5.0))
        idle = (relay.cpu() - used) / (time.monotonic() - began)
        relay.end()
    first = min(committed.values()) + _WARM_UP
    taken = [1000 * (arrivals.at[one] - at) for one, at in committed.items() if at >= first]
    cuts = statistics.quantiles(taken, n=100)
    return Latency(cuts[49], cuts[98], len(taken), busy, idle)


async def write(job: Job, rate: float, seconds: float) -> dict[UUID, float]:
    """Commits events at instants laid out beforehand; returns when each commit was over."""
    committed: dict[UUID, float] = {}
    async with connect(job.dsn, name="bench") as connection:
        began = time.monotonic()
        for number in range(round(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            event = OutboxEvent(job.topic, f"key-{number % _KEYS}", "OrderPlaced", b"x" * 200)
            async with connection.transaction():
                await enqueue(connection, event)
            committed[event.id] = time.monotonic()
    return committed
