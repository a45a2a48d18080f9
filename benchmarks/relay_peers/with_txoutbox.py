"""txoutbox: its PostgreSQL storage, its relay, and the publisher of its documentation (aiokafka, send and wait).

Changed from its defaults: rows a round and groups in parallel, both as large as still helps here, delivered rows
deleted, which was quicker than marking them, and a producer that waits for all replicas without duplicates, as ours
does. The order of each key is kept, which is its default.
"""

from datetime import timedelta
from importlib.metadata import version

import asyncpg
from aiokafka import AIOKafkaProducer
from job import Job, fill, main
from txoutbox import OutboxMessage, Relay, RelayConfig
from txoutbox.adapters.postgres import PostgresStorage

BATCH = 1_000
CONCURRENCY = 200
LEASE = timedelta(seconds=60)
PRODUCER = {"acks": "all", "enable_idempotence": True, "linger_ms": 2, "max_batch_size": 262_144}
INSERT = "INSERT INTO outbox (topic, key, payload) SELECT {topic}, {key}, {payload} FROM {numbers}"


async def prepare(job: Job) -> tuple[str, dict[str, object]]:
    async with asyncpg.create_pool(job.dsn, min_size=1) as pool:
        await PostgresStorage(pool).create_schema()
    await fill(job, INSERT)
    return version("txoutbox"), {
        "batch_size": BATCH,
        "concurrency": CONCURRENCY,
        "delete_on_ack": True,
        "client": f"aiokafka {version('aiokafka')}",
        **PRODUCER,
    }


async def run(job: Job) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=job.broker, **PRODUCER)
    await producer.start()

    async def publish(message: OutboxMessage) -> None:
        assert message.key is not None, "each event has one"
        await producer.send_and_wait(message.topic, message.payload, key=message.key.encode())

    async with asyncpg.create_pool(job.dsn) as pool:
        storage = PostgresStorage(pool, delete_on_ack=True)
        config = RelayConfig(batch_size=BATCH, concurrency=CONCURRENCY, lease=LEASE)
        await Relay(storage, publish, config=config).run(handle_signals=True)
    await producer.stop()


if __name__ == "__main__":
    main(prepare, run)
