"""The measured consumer: a whole service with metrics, as a process of its own, with a `Job` on standard input.

It says when it is up, when the first batch is handled, and when all records are. It runs until SIGTERM.
Run as `python -m quiesce.bench.consumer_subject`.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from quiesce.bench.consumer_job import Job
from quiesce.bench.relay_bare import mark
from quiesce.errors import SettingsError
from quiesce.inbox.record import Record
from quiesce.kafka import KafkaSource
from quiesce.lifecycle.events import Event, PhaseChanged
from quiesce.lifecycle.phases import Phase
from quiesce.metrics import PrometheusMetrics
from quiesce.postgres import once_batch, open_pool
from quiesce.supervisor.decorator import service
from quiesce.supervisor.entry import run
from quiesce.supervisor.service import Service
from quiesce.workers import Consumer, batches

CALLS = 2
"""Batches handled at once where a database is waited for; each has partitions of its own."""

_ROWS = "INSERT INTO bench_effect (key, number, value) SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[])"

Handler = Callable[..., Awaitable[object]]


class Counting:
    """Counts what handlers have handled, and says when that is everything. An observer, for the start."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._handled = 0

    def observe(self, event: Event) -> None:
        if isinstance(event, PhaseChanged) and event.phase is Phase.RUNNING:
            mark("up")

    def counted(self, handler: Handler) -> Handler:
        async def handle(records: Sequence[Record]) -> object:
            answer = await handler(records)
            before, self._handled = self._handled, self._handled + len(records)
            if not before:
                mark("first", records=self._handled)
            if before < self._job.records <= self._handled:
                mark("handled", records=self._handled)
            return answer

        return handle


async def nothing(records: Sequence[Record]) -> None:
    """What the bare loop does: each record is looked at."""
    size = 0
    for record in records:
        size += 0 if record.value is None else len(record.value)


async def rows(records: Sequence[Record], connection: Any) -> None:
    """Reads the JSON of each, and writes a row for each, by one statement."""
    keys = [(record.key or b"").decode() for record in records]
    numbers = [json.loads(record.value or b"{}")["number"] for record in records]
    await connection.execute(_ROWS, keys, numbers, [record.value for record in records])


async def handler_of(job: Job, s: Service) -> Handler:
    if job.handler == "nothing":
        return nothing
    db = await s.open(open_pool(job.dsn, max_size=CALLS))
    if job.handler == "inbox":
        return once_batch(db, "bench", rows)
    if job.handler != "rows":
        raise SettingsError(f"handler: got {job.handler!r}, takes nothing, rows or inbox")

    async def without_inbox(records: Sequence[Record]) -> None:
        async with db.acquire() as connection, connection.transaction():
            await rows(records, connection)

    return without_inbox


def main() -> int:
    job = Job.loads(sys.stdin.read())
    counting = Counting(job)

    @service("bench-consumer", observers=[PrometheusMetrics(), counting])
    async def bench_consumer(s: Service) -> None:
        handler = counting.counted(await handler_of(job, s))
        source = KafkaSource(job.broker, job.topic, group=job.group)
        calls = 1 if job.handler == "nothing" else CALLS
        s.run(Consumer(source, batches(handler), batch=job.page, concurrency=calls))

    return run(bench_consumer)


if __name__ == "__main__":
    sys.exit(main())
