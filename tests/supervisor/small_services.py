"""Services without a database: what they write to standard error is what the tests wait for."""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from quiesce import Budget, Part, Service, Stop, critical, service
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Closed

# Small shares, so that a test of a stuck thing takes a second or two.
QUICK = Budget(grace_period=6, prestop=0, http=1, workers=1, producers=1, pools=1, report=0.2, margin=0.2)


def say(text: str) -> None:
    print(f"[{time.monotonic():.3f}] {text}", file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def thing(name: str) -> AsyncIterator[str]:
    say(f"opened {name}")
    yield name
    say(f"closed {name}")


async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    """Answers `/slow` after the seconds in SLOW, anything else at once."""
    assert scope["type"] == "http"
    if scope["path"] == "/slow":
        say("request began")
        await asyncio.sleep(float(os.environ.get("SLOW", "0.5")))
        say("request answered")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@service("web", budget=QUICK)
async def web(s: Service) -> None:
    s.http(app, host="127.0.0.1", port=int(os.environ.get("PORT", "0")))
    await s.open(thing("producer"), name="producer", part=Part.PRODUCERS)
    await s.open(thing("pool"), name="pool")
    s.every(0.05, iteration, name="periodic")
    say("started")


async def iteration() -> None:
    say("iteration began")
    await asyncio.sleep(float(os.environ.get("ITERATION", "0.2")))
    say("iteration ended")


@service("heap", budget=QUICK)
async def heap(s: Service) -> None:
    s.every(0.05, tell_heap)


async def tell_heap() -> None:
    say("the start is out of the collector's way" if gc.get_freeze_count() else "not yet")


@service("stuck", budget=QUICK)
async def stuck(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(never_ends)
    say("started")


async def never_ends(stop: Stop) -> None:
    say("the worker began")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            say("ignored a cancel")


@service("crash", budget=QUICK)
async def crash(s: Service) -> None:
    s.http(app, host="127.0.0.1", port=0)
    await s.open(thing("pool"), name="pool")
    s.loop(dies)


async def dies(stop: Stop) -> None:
    if os.environ.get("BY_SYSTEM_EXIT"):
        sys.exit(5)
    raise ValueError("the worker is broken")


@service("slow-start", budget=QUICK)
async def slow_start(s: Service) -> None:
    await s.open(thing("first"), name="first")
    say("starting slowly")
    await asyncio.sleep(3600)
    await s.open(thing("second"), name="second")


@service(
    "blocked",
    budget=Budget(grace_period=2, prestop=0, http=0.5, workers=0.5, producers=0.2, pools=0.2, report=0.2, margin=0.2),
)
async def blocked(s: Service) -> None:
    s.loop(blocks)
    say("started")


@service("patient", budget=QUICK)
async def patient(s: Service) -> None:
    s.loop(blocks)
    say("started")


async def blocks(stop: Stop) -> None:
    say("the worker began")
    await stop.wait()
    say("blocking the loop")
    time.sleep(3600)  # on purpose: nothing on this loop can run any more


@service("section", budget=QUICK)
async def section(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    s.loop(pays, on_drain="cancel")
    say("started")


async def pays(stop: Stop) -> None:
    await critical("charge", charge)
    say("the caller went on after its cancel")


async def charge() -> None:
    say("charging")
    await asyncio.sleep(0.4)
    say("charged")


class StuckCloser:
    """A resource that does not close."""

    def __init__(self, name: str, part: Part) -> None:
        self.name = name
        self.part = part

    async def open(self) -> str:
        return self.name

    async def close(self, deadline: Deadline) -> Closed:
        say(f"closing {self.name}")
        await asyncio.sleep(3600)
        return Closed()


@service("stuck-closer", budget=QUICK)
async def stuck_closer(s: Service) -> None:
    await s.open(thing("pool"), name="pool")
    await s.open(StuckCloser("stuck producer", Part.PRODUCERS))
    say("started")


@service("early", budget=QUICK)
async def early(s: Service) -> None:
    say("the start function ran")


if os.environ.get("SIGNAL_AT_IMPORT"):
    # As an orchestrator that changes its mind while we import.
    os.kill(os.getpid(), signal.SIGTERM)
    say("signal sent at import")
