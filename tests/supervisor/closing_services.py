"""Services whose closers are the matter: they block in C, in a queue, or wait for servers that do not answer."""

import asyncio
import contextlib
import ctypes
import os
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from small_services import say, thing

from quiesce import Budget, Part, Service, Stop, service
from quiesce.kafka import KafkaPublisher
from quiesce.outbox import ClaimedEvent, OutboxEvent, PlainEvent
from quiesce.postgres import open_pool

SHORT = Budget(grace_period=5, prestop=0, http=0, workers=0.5, producers=1, pools=1, report=1, margin=0.5)


class StuckInC:
    """Its `close` reads from a pipe nobody writes to: a C call without end, with the interpreter lock released."""

    def close(self) -> None:
        say("close in C began")
        reader, _ = os.pipe()
        buffer = ctypes.create_string_buffer(1)
        # CDLL gives up the interpreter lock meanwhile, as a driver's own close does.
        libc = ctypes.CDLL(None)
        libc.read(reader, buffer, 1)


@service("stuck-in-c", budget=SHORT)
async def stuck_in_c(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    await s.open(StuckInC(), name="client", part=Part.PRODUCERS)
    s.loop(ticks, after="http")
    say("started")


async def ticks(stop: Stop) -> None:
    asyncio.get_running_loop().create_task(tick(), name="ticks")
    await stop.wait()


async def tick() -> None:
    while True:
        await asyncio.sleep(0.1)
        say("tick")


@service("stuck-in-queue", budget=SHORT)
async def stuck_in_queue(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    await s.open(waits_in_queue(), name="client", part=Part.PRODUCERS)
    say("started")


@contextlib.contextmanager
def waits_in_queue() -> Iterator[None]:
    yield
    say("exit waits in a queue")
    queue.Queue[None]().get()


@service("stuck-in-to-thread", budget=SHORT)
async def stuck_in_to_thread(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    await s.open(waits_in_executor(), name="client", part=Part.PRODUCERS)
    say("started")


@contextlib.asynccontextmanager
async def waits_in_executor() -> AsyncIterator[None]:
    yield
    say("exit waits in an executor")
    await asyncio.to_thread(queue.Queue[None]().get)


@service("blocking-things", budget=SHORT)
async def blocking_things(s: Service) -> None:
    database = await s.open(
        contextlib.closing(sqlite3.connect(":memory:", check_same_thread=False)), name="sqlite", part=Part.POOLS
    )
    database.execute("SELECT 1")
    lock = await s.open(threading.Lock(), name="lock")
    say(f"started with {lock}")


@service("exits-while-closing", budget=SHORT)
async def exits_while_closing(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    await s.open(leaves(), name="leaves", part=Part.PRODUCERS)
    await s.open(Leaves(), name="leaves in a thread", part=Part.PRODUCERS)
    say("started")


@contextlib.asynccontextmanager
async def leaves() -> AsyncIterator[None]:
    yield
    raise SystemExit(7)


class Leaves:
    def close(self) -> None:
        raise SystemExit(8)


@service("no-time", budget=SHORT)
async def no_time(s: Service) -> None:
    for name in ("first", "second", "third"):
        await s.open(thing(name), name=name)

    async def asks_to_stop(stop: Stop) -> None:
        s.stop("evicted", within=0)
        await stop.wait()

    s.loop(asks_to_stop)


@service("forgets", budget=SHORT)
async def forgets(s: Service) -> None:
    pool = await s.open(open_pool(os.environ["DSN"], name="orders"))
    s.loop(keeps_a_connection, pool, on_drain="cancel")


async def keeps_a_connection(stop: Stop, pool: object) -> None:
    held = await pool.acquire()  # type: ignore[attr-defined]  # an asyncpg pool
    say(f"holding {held.get_server_pid()}")
    globals()["held"] = held
    await stop.wait()


@service("publishes", budget=replace(SHORT, grace_period=7, producers=3))
async def publishes(s: Service) -> None:
    """Nine events are handed over and not yet sent (the linger is longer than the test) when the stop comes."""
    await s.open(thing("pool"), name="pool")
    publisher = await s.open(KafkaPublisher(os.environ["BOOTSTRAP"], settings={"linger.ms": 60_000}))
    s.loop(publish, publisher, on_drain="cancel")


async def publish(stop: Stop, publisher: KafkaPublisher) -> None:
    topic = os.environ["TOPIC"]
    publishing = asyncio.ensure_future(publisher.publish([event(topic, number) for number in range(10)]))
    # The first event for a partition goes alone, and at once.
    async with asyncio.timeout(10):
        while (handle := publisher._handle) is None or handle.queued() < 9 or handle.scouts:
            await asyncio.sleep(0.01)
    say(f"handed over, answered: {publishing.done()}")
    await stop.wait()
    say(f"the worker is over at {time.monotonic():.3f}")


def event(topic: str, number: int) -> ClaimedEvent:
    made = OutboxEvent(topic, f"k{number}", "Placed")
    return PlainEvent(number, made.id, made.aggregate_id, topic, made.type, b"x", {})
