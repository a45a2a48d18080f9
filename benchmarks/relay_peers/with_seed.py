"""The relay as the seeds of this project describe it: `benchmarks/seed_relay`, in Go, with nothing changed."""

import os
import re

import asyncpg
from job import HERE, PLACE, Job, fill, main

PROGRAM = PLACE / "seed-relay"
TABLE = """
CREATE TABLE outbox_event (
    id uuid PRIMARY KEY, aggregate_id text NOT NULL, topic text NOT NULL, payload bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), dispatched_at timestamptz
)
"""
INSERT = (
    "INSERT INTO outbox_event (id, aggregate_id, topic, payload) "
    "SELECT gen_random_uuid(), {key}, {topic}, {payload} FROM {numbers}"
)


async def prepare(job: Job) -> tuple[str, dict[str, object]]:
    connection = await asyncpg.connect(job.dsn)
    await connection.execute(TABLE)
    await connection.close()
    await fill(job, INSERT)
    modules = (HERE.parent / "seed_relay" / "go.mod").read_text()
    pgx, kafka = (re.findall(rf"{name} v(\S+)", modules)[0] for name in ("pgx/v5", "kafka-go"))
    return f"pgx {pgx}, kafka-go {kafka}", {"interval_ms": 500, "batch": 50, "writer": "the default one: no acks"}


async def run(job: Job) -> None:
    environment = {"SEED_DSN": job.dsn, "SEED_BROKER": job.broker, "SEED_TOPIC": job.topic}
    # This process becomes the relay, so that a signal reaches it.
    os.execve(PROGRAM, [str(PROGRAM)], {**os.environ, **environment})  # noqa: S606


if __name__ == "__main__":
    main(prepare, run)
