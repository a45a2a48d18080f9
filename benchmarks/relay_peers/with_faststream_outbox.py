"""faststream-outbox: a subscriber of its table under a Kafka publisher, as its documentation has a relay.

Changed from its defaults, by its page on performance: rows a fetch, workers, deletes in batches, no wait between
fetches, the autovacuum settings that it recommends. FastStream's validation of types is off and its handler gets the
message as it is, which halves its work here. The producer waits for all replicas without duplicates, as ours does. With
several workers it keeps no order.
"""

import asyncio
import signal
from importlib.metadata import version
from typing import Any

from faststream.kafka import KafkaBroker, KafkaResponse
from faststream_outbox import OutboxBroker, make_outbox_table, outbox_autovacuum_ddl
from job import Job, fill, main
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

WORKERS = 64
FETCH = 1_000
FLUSH = 100
PRODUCER = {"acks": "all", "enable_idempotence": True, "linger_ms": 0, "max_batch_size": 262_144}
QUEUE = "events"
INSERT = (
    "INSERT INTO outbox (queue, payload, headers) SELECT 'events', {payload}, "
    "jsonb_build_object('key', {key}, 'correlation_id', gen_random_uuid()) FROM {numbers}"
)

metadata = MetaData()
table = make_outbox_table(metadata, table_name="outbox")


def engine_of(job: Job) -> AsyncEngine:
    # A connection for each worker, one for the fetches.
    dsn = job.dsn.replace("postgresql://", "postgresql+asyncpg://")
    return create_async_engine(dsn, pool_size=WORKERS + 2)


async def prepare(job: Job) -> tuple[str, dict[str, object]]:
    engine = engine_of(job)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        await connection.execute(text(outbox_autovacuum_ddl("outbox")))
    await engine.dispose()
    await fill(job, INSERT)
    return version("faststream-outbox"), {
        "max_workers": WORKERS,
        "fetch_batch_size": FETCH,
        "terminal_flush_batch_size": FLUSH,
        "apply_types": False,
        "client": f"aiokafka {version('aiokafka')}",
        **PRODUCER,
    }


async def run(job: Job) -> None:
    engine = engine_of(job)
    kafka = KafkaBroker(job.broker, logger=None, **PRODUCER)
    outbox = OutboxBroker(engine, outbox_table=table, logger=None, apply_types=False)

    async def whole(message: Any) -> Any:
        return message

    @kafka.publisher(job.topic)
    @outbox.subscriber(
        QUEUE,
        max_workers=WORKERS,
        fetch_batch_size=FETCH,
        terminal_flush_batch_size=FLUSH,
        min_fetch_interval=0.001,
        max_fetch_interval=0.001,
        decoder=whole,
    )
    async def relay(message: Any) -> KafkaResponse:
        return KafkaResponse(message.body, key=message.headers["key"].encode())

    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await kafka.start()
    await outbox.start()
    await over.wait()
    await outbox.stop()
    await kafka.stop()
    await engine.dispose()


if __name__ == "__main__":
    main(prepare, run)
