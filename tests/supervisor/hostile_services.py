"""Services whose own code, or whose libraries, do what breaks a loop. What they write is what the tests wait for.

To standard output: some of them take standard error away.
"""

import asyncio
import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from quiesce import Budget, Service, Stop, critical, service
from quiesce.lifecycle.events import Event

QUICK = Budget(grace_period=6, prestop=0, http=1, workers=1, producers=1, pools=1, report=0.5, margin=0.5)
CALM = Budget(grace_period=30, prestop=0, http=8, workers=8, producers=5, pools=5, report=2, margin=1)


def say(text: str) -> None:
    print(f"[{time.monotonic():.3f}] {text}", flush=True)


@contextlib.asynccontextmanager
async def thing(name: str) -> AsyncIterator[str]:
    say(f"opened {name}")
    yield name
    say(f"closed {name}")


async def waits(stop: Stop) -> None:
    say("working")
    await stop.wait()
    say("worker over")


# SystemExit and KeyboardInterrupt, everywhere but in the frame of a worker.


async def leaves() -> None:
    await asyncio.sleep(0)
    sys.exit(3)


async def in_a_section(stop: Stop) -> None:
    await critical("pay", leaves)


async def in_an_idle_wait(stop: Stop) -> None:
    await stop.or_stop(leaves())


async def in_a_task(stop: Stop) -> None:
    task = asyncio.create_task(leaves())
    await stop.wait()
    say("worker over")
    assert task.done()


async def in_a_group_inside_a_section(stop: Stop) -> None:
    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(leaves())

    await critical("pay", group)


async def in_a_callback(stop: Stop) -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await stop.wait()
    say("worker over")


async def by_the_keyboard(stop: Stop) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    asyncio.get_running_loop().call_soon(interrupt)
    await stop.wait()
    say("worker over")


EXITS: dict[str, Callable[[Stop], Any]] = {
    f.__name__: f
    for f in (in_a_section, in_an_idle_wait, in_a_task, in_a_group_inside_a_section, in_a_callback, by_the_keyboard)
}


@service("exits", budget=CALM)
async def exits(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(EXITS[os.environ["WHERE"]], name="leaving")
    s.loop(waits)


@service("hands-back", budget=QUICK)
async def hands_back(s: Service) -> None:
    await s.open(thing("pool"), name="pool")

    async def stays(stop: Stop) -> None:
        say("working")
        await asyncio.sleep(3600)

    s.loop(stays, hand_back=lambda: sys.exit(3))


@service("waked", budget=CALM)
async def waked(s: Service) -> None:
    await s.open(thing("pool"), name="pool")

    async def listens(stop: Stop) -> None:
        stop.on_stop(sys.exit, 3)
        await waits(stop)

    s.loop(listens)


class CannotSay:
    name = "relay"

    def why_not_ready(self, now: float) -> str | None:
        sys.exit(3)

    async def run(self, stop: Stop) -> None:
        await waits(stop)


@service("cannot-say", budget=CALM)
async def cannot_say(s: Service) -> None:
    s.http(nothing, host="127.0.0.1", port=int(os.environ["PORT"]))
    await s.open(thing("pool"), name="pool")
    s.run(CannotSay())


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks")


# Standard error that is gone, or is no file.


class Wrapped:
    """As a library of log collectors puts it in the place of `sys.stderr`."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        return None


@service("wraps", budget=QUICK)
async def wraps(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    if os.environ.get("WRAPS"):
        sys.stderr = Wrapped()
    if os.environ.get("CLOSES"):
        sys.stderr.close()
    s.loop(waits)
    if os.environ.get("HANGS"):
        s.loop(blocks)


async def blocks(stop: Stop) -> None:
    await stop.wait()
    say("blocks the loop")
    time.sleep(3600)  # on purpose: the hard deadline is to end it


# Observers that raise what is no Exception.


class Raises:
    def __init__(self, kind: type[BaseException], on: str) -> None:
        self._kind = kind
        self._on = on

    def observe(self, event: Event) -> None:
        if type(event).__name__ == self._on:
            raise self._kind("the observer")


KINDS: dict[str, type[BaseException]] = {
    kind.__name__: kind for kind in (SystemExit, KeyboardInterrupt, asyncio.CancelledError)
}


@service(
    "observed", budget=QUICK, observers=[Raises(KINDS[os.environ.get("KIND", "SystemExit")], os.environ.get("ON", ""))]
)
async def observed(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(waits)


# Forked children.


def child(pipe: Any) -> None:
    pipe.send("here")
    time.sleep(60)  # the parent ends it


@service("forks", budget=CALM)
async def forks(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(forking)


async def forking(stop: Stop) -> None:
    fork = multiprocessing.get_context("fork")
    for name in ("terminate", "interrupt"):
        ours, theirs = fork.Pipe()
        process = fork.Process(target=child, args=(theirs,))
        process.start()
        await asyncio.to_thread(ours.recv)
        assert process.pid is not None
        os.kill(process.pid, 15 if name == "terminate" else 2)
        await asyncio.to_thread(process.join, 10)
        say(f"{name}: {process.exitcode}")
        process.kill()
    say("children over")
    await stop.wait()
    say("worker over")


# A worker that comes back although nobody asked it to.


@service("returns", budget=CALM)
async def returns(s: Service) -> None:
    s.http(nothing, host="127.0.0.1", port=int(os.environ["PORT"]))
    await s.open(thing("pool"), name="pool")

    async def consume(stop: Stop) -> None:
        say("working")

    s.loop(consume)
    s.loop(waits)
