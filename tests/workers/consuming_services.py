"""Consumers as real processes. Run by `test_consumer_processes.py`. Each writes what it handles into a table."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from quiesce import Budget, Consumer, Service, service
from quiesce.inbox.record import Record
from quiesce.kafka import KafkaSource
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import once, open_pool
from quiesce.testing.crash_points import arm_from_environment

arm_from_environment()

BUDGET = Budget(grace_period=60, prestop=0, http=1, workers=30, producers=5, pools=5, report=1, margin=1)

CLASSIC: dict[str, object] = {
    "session.timeout.ms": int(os.environ.get("SESSION_MS", "6000")),
    "heartbeat.interval.ms": 100,
}
GROUP = CLASSIC if os.environ.get("PROTOCOL", "classic") == "classic" else {"group.protocol": "consumer"}
if INSTANCE := os.environ.get("INSTANCE"):
    GROUP = {**GROUP, "group.instance.id": INSTANCE}

EFFECT = 'INSERT INTO effect (partition, "offset", pid) VALUES ($1, $2, $3)'


def source(revoke_bound: float = 5.0) -> KafkaSource:
    return KafkaSource(
        os.environ["BOOTSTRAP"],
        os.environ["TOPIC"],
        group=os.environ["GROUP"],
        revoke_bound=revoke_bound,
        settings=GROUP,
    )


def said(word: str) -> None:
    print(word, flush=True)


_seen: list[int] = []


async def note(record: Record, connection: Any) -> None:
    if not _seen:
        said("handles")
        _seen.append(record.offset)
    await connection.execute(EFFECT, record.partition, record.offset, os.getpid())


@service("plain", budget=BUDGET)
async def plain(s: Service) -> None:
    """Without an inbox: whatever comes twice shows. One key takes its time, and now and then much of it: its records
    wait, while those of others behind them are done."""
    db = await s.open(open_pool(os.environ["DSN"], max_size=4))

    async def handle(record: Record) -> None:
        if record.key == b"hot":
            await asyncio.sleep(float(os.environ.get("SLOW", "2")) if record.offset % 97 == 0 else 0.02)
        async with db.acquire() as connection:
            await note(record, connection)

    s.run(Consumer(source(revoke_bound=30.0), handle, name="plain", concurrency=4))


@service("with-inbox", budget=BUDGET)
async def with_inbox(s: Service) -> None:
    db = await s.open(open_pool(os.environ["DSN"], max_size=4))
    s.run(Consumer(source(), once(db, "effects", note), name="effects", concurrency=4, batch=5))


async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    """Never asked: only health is."""


@service("watched", budget=BUDGET)
async def watched(s: Service) -> None:
    """With an inbox, and an endpoint that says whether it is ready. It prints what it is handed, doubles too."""
    said(f"port {s.http(app, host='127.0.0.1', port=0)}")
    db = await s.open(open_pool(os.environ["DSN"], max_size=8))
    deliver = once(db, "effects", note)

    async def handle(record: Record) -> None:
        said(f"handed {record.partition} {record.offset}")
        await asyncio.sleep(float(os.environ.get("SECONDS", "0.02")))
        await deliver(record)

    s.run(Consumer(source(), handle, name="watched", concurrency=4, ready_within=1.0))


@service("impatient", budget=BUDGET, start_limit=1.0)
async def impatient(s: Service) -> None:
    s.run(Consumer(source(), note, None, name="impatient"))


@service("closed", budget=BUDGET)
async def closed(s: Service) -> None:
    """Somebody closes the source under its consumer."""
    member = source()
    s.run(Consumer(member, note, None, name="closed"))

    async def close() -> None:
        await member.close(Deadline(time.monotonic() + 10))

    s.every(0.1, close)


@service("stuck", budget=BUDGET)
async def stuck(s: Service) -> None:
    """A handler that swallows its cancel: it blocks nobody's thread, and does not end."""
    member = KafkaSource(
        os.environ["BOOTSTRAP"], os.environ["TOPIC"], group=os.environ["GROUP"], revoke_bound=1.0, settings=GROUP
    )

    async def handle(record: Record) -> None:
        said(f"begins {record}")
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                said(f"swallows {time.monotonic():.1f}")

    s.run(Consumer(member, handle, name="stuck", concurrency=2))


@service("blocking", budget=BUDGET)
async def blocking(s: Service) -> None:
    """A handler that blocks the loop, so that no timer of it can tear anything. An eager strategy: all has to go."""
    member = KafkaSource(
        os.environ["BOOTSTRAP"],
        os.environ["TOPIC"],
        group=os.environ["GROUP"],
        revoke_bound=1.0,
        settings={**CLASSIC, "partition.assignment.strategy": "range"},
    )

    async def handle(record: Record) -> None:
        said(f"begins {record}")
        time.sleep(float(os.environ["SECONDS"]))
        said(f"wakes up {record}")

    s.run(Consumer(member, handle, name="blocking"))
