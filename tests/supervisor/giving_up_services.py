"""Services that hang before they are told to stop, or do not heed an abort at once, for tests with real processes."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from quiesce import Budget, Service, Stop, critical, service

SHORT = Budget(grace_period=2.4, prestop=0, http=0.4, workers=0.4, producers=0.3, pools=0.3, report=0.4, margin=0.2)
# HTTP and workers take the whole drain: 2.5 s, and nothing to spare.
TIGHT = Budget(grace_period=6, prestop=0, http=2.5, workers=2.5, producers=1, pools=1, report=1, margin=0.5)
CALM = Budget(grace_period=30, prestop=0, http=8, workers=8, producers=5, pools=5, report=2, margin=1)


def say(text: str) -> None:
    print(f"[{time.monotonic():.3f}] {text}", file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def thing(name: str) -> AsyncIterator[None]:
    say(f"opened {name}")
    try:
        yield
    finally:
        say(f"closed {name}")


async def waits(stop: Stop) -> None:
    await stop.wait()


# The loop is blocked when the signal comes.


def block() -> None:
    say("blocking")
    until = time.monotonic() + float(os.environ.get("BLOCKING", "3600"))
    while time.monotonic() < until:
        # Not in one piece: a signal that comes just before a sleep begins is seen by Python only at its end.
        time.sleep(0.05)
    say("blocks no more")


async def blocks(stop: Stop) -> None:
    async for _ in stop.every(0.1):
        block()
        await stop.wait()


@service("blocked-worker", budget=SHORT)
async def blocked_worker(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(blocks)


@service("blocked-for-a-while", budget=CALM)
async def blocked_for_a_while(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(blocks)


@service("blocked-start", budget=SHORT)
async def blocked_start(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    block()


if os.environ.get("IMPORT"):
    block()


@service("hastened", budget=CALM)
async def hastened(s: Service) -> None:
    async def stops_twice(stop: Stop) -> None:
        s.stop("one")
        s.stop("two", within=1.5)
        block()

    s.loop(stops_twice)


# A start that does not end.


async def starts_for_ever(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    say("starting")
    while True:
        try:
            await asyncio.sleep(3600)  # the start hangs
        except asyncio.CancelledError:
            say("ate a cancel")


async def undoes_for_ever(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    say("starting")
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(3600)  # the start hangs


eats_in_start = service("eats-in-start", budget=SHORT)(starts_for_ever)
eats_in_calm_start = service("eats-in-calm-start", budget=CALM)(starts_for_ever)
undoes_in_calm_start = service("undoes-in-calm-start", budget=CALM)(undoes_for_ever)


@contextlib.asynccontextmanager
async def undone_with_the_pool() -> AsyncIterator[None]:
    say("starting")
    try:
        await asyncio.sleep(3600)
        yield
    finally:
        say("undoing")
        while os.environ["UNDOING"] == "never":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)  # it is not undone
        await asyncio.sleep(float(os.environ["UNDOING"]))
        say("undone")


@service("undoes-an-opening", budget=TIGHT)
async def undoes_an_opening(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    await s.open(undone_with_the_pool(), name="second")


# What is aborted unwinds.


async def sleeps_and_rolls_back() -> None:
    say("working")
    try:
        await asyncio.sleep(3600)
    finally:
        say("unwinding")
        await asyncio.sleep(0.05)
        say("rolled back")


async def rolls_back(stop: Stop) -> None:
    await sleeps_and_rolls_back()


async def rolls_back_a_section(stop: Stop) -> None:
    await critical("pay", sleeps_and_rolls_back)


async def app(scope: Any, receive: Any, send: Any) -> None:
    await sleeps_and_rolls_back()


@service("tight-worker", budget=TIGHT)
async def tight_worker(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(rolls_back)


@service("tight-section", budget=TIGHT)
async def tight_section(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(rolls_back_a_section)


@service("tight-http", budget=TIGHT)
async def tight_http(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    port = s.http(app, host="127.0.0.1", port=0)
    say(f"port {port}")


@service("section-in-an-abort", budget=CALM)
async def section_in_an_abort(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(rolls_back_a_section)


# Settings that no server takes.


@service("bad-http", budget=SHORT)
async def bad_http(s: Service) -> None:
    every: dict[str, dict[str, Any]] = {
        "port as text": {"port": "8080"},
        "port out of range": {"port": 65536},
        "unknown": {"port": 0, "nosuch": 1},
        "no such file": {"port": 0, "ssl_certfile": "/nowhere/cert.pem"},
    }
    s.http(app, host="127.0.0.1", **every[os.environ["SETTINGS"]])
