"""A consumer of batches as a real process. Run by `test_consumer_batches_rolled.py`."""

import asyncio
import os
from collections.abc import Sequence

from consuming_services import BUDGET, EFFECT, said, source

from quiesce import Consumer, Service, service
from quiesce.inbox.record import Record
from quiesce.postgres import open_pool
from quiesce.workers import batches


@service("batching", budget=BUDGET)
async def batching(s: Service) -> None:
    """Without an inbox: whatever comes twice shows. A batch with a record of the hot key takes its time: others of its
    partition wait behind it, while those of other partitions are done."""
    db = await s.open(open_pool(os.environ["DSN"], max_size=4))
    sizes: list[int] = []

    async def handle(records: Sequence[Record]) -> None:
        if any(record.key == b"hot" for record in records):
            await asyncio.sleep(0.1)
        rows = [(record.partition, record.offset, os.getpid()) for record in records]
        async with db.acquire() as connection, connection.transaction():
            await connection.executemany(EFFECT, rows)
        if not sizes:
            said("handles")
        if len(records) > max(sizes, default=1):
            said(f"batch of {len(records)}")
        sizes.append(len(records))

    # So few in flight that all that waits is done well within half of the bounds.
    s.run(Consumer(source(revoke_bound=30.0), batches(handle), name="batching", batch=20, concurrency=4, in_flight=100))
