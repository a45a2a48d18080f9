"""Services whose workers are threads, for tests with real processes."""

import asyncio
import contextlib
import os
import queue
import random
import signal
import time
from collections.abc import AsyncIterator, Callable

from quiesce import Budget, Part, Service, Stop, critical, service

QUICK = Budget(grace_period=5, prestop=0, http=0.5, workers=0.5, producers=0.5, pools=0.5, report=0.5, margin=0.2)

never: "queue.Queue[str]" = queue.Queue()


def say(text: str) -> None:
    # One write a line: `print` makes two, and threads would mix their lines up.
    os.write(2, f"[{time.monotonic():.3f}] {text}\n".encode())


@contextlib.asynccontextmanager
async def thing(name: str) -> AsyncIterator[None]:
    say(f"opened {name}")
    yield
    say(f"closed {name}")


def blocks_in_get(stop: Stop) -> None:
    say("thread blocks")
    never.get()


@service("left-thread", budget=QUICK)
async def left_thread(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.thread(blocks_in_get)
    say("started")


async def blocks_an_executor(stop: Stop) -> None:
    say("executor blocks")
    await asyncio.to_thread(never.get)


@service("stuck-executor", budget=QUICK)
async def stuck_executor(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(blocks_an_executor)
    say("started")


async def step(name: str, seconds: float) -> None:
    say(f"{name} began")
    await rest_of(name, seconds)


async def rest_of(name: str, seconds: float) -> None:
    await asyncio.sleep(seconds)
    say(f"{name} ended")


async def works(stop: Stop, name: str, draw: random.Random) -> None:
    async for _ in stop.every(0.002 * draw.random()):
        # Said in the very step in which the iteration begins: a section's own first step comes a turn later.
        say(f"{name} began")
        await critical(name, rest_of, name, 0.01 * draw.random())


def works_in_a_thread(stop: Stop, draw: random.Random) -> None:
    for _ in stop.every_sync(0.002 * draw.random()):
        say("thread began")
        time.sleep(0.005 * draw.random())
        say("thread ended")


@service("race", budget=Budget(grace_period=20, prestop=0, http=1, workers=5, producers=2, pools=2, report=1))
async def race(s: Service) -> None:
    """A little of everything; RACE seeds how long each thing takes."""
    draw = random.Random(os.environ.get("RACE", "0"))
    for name, part in (("producer", Part.PRODUCERS), ("pool", Part.POOLS)):
        await asyncio.sleep(0.02 * draw.random())
        await s.open(thing(name), name=name, part=part)
    s.loop(works, "work", draw, name="work")
    s.thread(works_in_a_thread, draw, name="thread")
    s.every(0.003, step, "beat", 0.0, name="beat", keeps="all")
    say("started")


# The same with workers that overrun, hang and roll back slowly.

WILD = Budget(grace_period=5, prestop=0, http=1.5, workers=1.5, producers=0.5, pools=0.5, report=0.5, margin=0.5)
KINDS = ("late", "hangs", "section", "long section", "eats", "start")


async def torn_in_order(name: str, seconds: float) -> None:
    say(f"{name} began")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        await asyncio.sleep(0.03)  # it rolls back, and the pool must be there
        say(f"{name} was torn")
        raise
    finally:
        say(f"{name} ended")


async def behind_the_stop(stop: Stop, name: str, seconds: float) -> None:
    await stop.wait()
    await torn_in_order(name, seconds)


async def pays_behind_the_stop(stop: Stop, name: str, seconds: float) -> None:
    async for _ in stop.every(0.002):
        await critical(name, torn_in_order, name, 0.001)
    await critical(name, torn_in_order, name, seconds)


async def eats(stop: Stop) -> None:
    await stop.wait()
    say("eats hangs")
    await never_ends()


async def never_ends() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


@service("wild", budget=WILD)
async def wild(s: Service) -> None:
    """Two of `KINDS` beside what `race` has; RACE seeds which, and how long each takes."""
    draw = random.Random(os.environ.get("RACE", "0"))
    kinds = draw.sample(KINDS, 2)
    for name, part in (("producer", Part.PRODUCERS), ("pool", Part.POOLS)):
        await asyncio.sleep(0.02 * draw.random())
        await s.open(thing(name), name=name, part=part)
    s.loop(works, "work", draw, name="work")
    s.every(0.003, step, "beat", 0.0, name="beat", keeps="all")
    if "late" in kinds:
        s.loop(behind_the_stop, "late", 1.3 * draw.random(), name="late")
    if "hangs" in kinds:
        s.loop(behind_the_stop, "hangs", 3600.0, name="hangs")
    if "section" in kinds:
        s.loop(pays_behind_the_stop, "section", 0.9 * draw.random(), name="section")
    if "long section" in kinds:
        s.loop(pays_behind_the_stop, "long section", 3600.0, name="long section")
    if "eats" in kinds:
        s.loop(eats, name="eats")
    if "start" in kinds:
        say("start hangs")
        await never_ends()
    say("started")


class LastSignal:
    """Sends SIGTERM when the interpreter takes the modules down, after it has given up its signal handlers."""

    def __init__(self, kill: Callable[[int, int], None] = os.kill, pid: int | None = None) -> None:
        self._kill = kill
        self._pid = os.getpid() if pid is None else pid

    def __del__(self) -> None:
        self._kill(self._pid, 15)


@service("brief", budget=QUICK)
async def brief(s: Service) -> None:
    signal.raise_signal(signal.SIGTERM)
    globals()["last_signal"] = LastSignal()
