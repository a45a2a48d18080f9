"""The loop that the way from commit to consumer is compared with: what one would write first for a short one.

It asks for all lanes in one query every two milliseconds, publishes what there is, waits for the acks and moves the
cursors. It knows no stop, no outage, no retry and no metrics, has the lanes for itself, and skips an event whose
transaction ends behind a later one. Run as `python -m quiesce.bench.relay_probing`, with a `Job` on standard input;
ended by SIGTERM.
"""

import asyncio
import signal
import sys
from typing import Any

import asyncpg
from confluent_kafka import Producer

from quiesce.bench.relay_bare import Page, mark, settled
from quiesce.bench.relay_job import Job

EVERY = 0.002
"""Seconds between two looks."""

_LANES = 16
_PROBE = """
SELECT event.* FROM unnest($1::smallint[], $2::bigint[]) AS wanted (lane, last) CROSS JOIN LATERAL (
    SELECT lane, position, id, aggregate_id, topic, type, payload FROM outbox_event
    WHERE lane = wanted.lane AND position > wanted.last ORDER BY position LIMIT 1000
) AS event
"""
_MOVE = """
UPDATE outbox_lane SET last = moved.last FROM unnest($1::smallint[], $2::bigint[]) AS moved (lane, last)
WHERE outbox_lane.lane = moved.lane
"""
# A table that is empty when the statement is planned is read as a whole otherwise, for good.
_PLAN = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; SET plan_cache_mode = force_generic_plan"


async def probe(connection: Any, producer: Producer, over: asyncio.Event) -> None:
    await connection.execute(_PLAN)
    look = await connection.prepare(_PROBE)
    move = await connection.prepare(_MOVE)
    last = dict.fromkeys(range(_LANES), 0)
    mark("up")
    while not over.is_set():
        if rows := await look.fetch(list(last), list(last.values())):
            moved = {row[0]: row[1] for row in rows}
            settled(producer, _produce(producer, rows))
            last |= moved
            await move.fetch(list(moved), list(moved.values()))
        await asyncio.sleep(EVERY)


def _produce(producer: Producer, rows: list[Any]) -> Page:
    page = Page(rows[-1][1], len(rows))
    for _, _, identity, key, topic, kind, payload in rows:
        headers: Any = [("id", str(identity)), ("type", kind)]
        producer.produce(topic, payload, key, headers=headers, on_delivery=page.acked)
    return page


async def main() -> None:
    job = Job.loads(sys.stdin.read())
    producer = Producer(
        {
            "bootstrap.servers": job.broker,
            "partitioner": "murmur2_random",
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
        }
    )
    producer.list_topics(timeout=10)
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    connection = await asyncpg.connect(job.dsn)
    await probe(connection, producer, over)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
