"""What every service of the comparison shares: the same work, the same resource, and one line for each fact.

Each runs as its documentation says. Three things come from the environment:

- PEER_STUCK: "worker" (the work never ends, but heeds a cancel), "closer" (the closing never ends), or nothing;
- PEER_WORK: seconds of work;
- PEER_LIMIT: where set, the seconds that the service gives its shutdown by the setting of its own. Without it, the
  defaults stand.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator

STUCK = os.environ.get("PEER_STUCK", "")
WORK = float(os.environ.get("PEER_WORK", "1"))
LIMIT = float(os.environ["PEER_LIMIT"]) if os.environ.get("PEER_LIMIT") else None
PORT = int(os.environ.get("PEER_PORT", "0"))


def say(fact: str) -> None:
    # One write a line, unbuffered: what a killed process has said is there.
    os.write(1, f"FACT {fact} {os.getpid()}\n".encode())


async def work() -> None:
    say("began")
    try:
        if STUCK == "worker":
            await asyncio.Event().wait()
        await asyncio.sleep(WORK)
    except asyncio.CancelledError:
        say("torn")
        raise
    say("ended")


async def close() -> None:
    say("closing")
    if STUCK == "closer":
        await asyncio.Event().wait()
    # As a pool does, it has to wait for its connections.
    await asyncio.sleep(0.05)
    say("closed")


@contextlib.asynccontextmanager
async def resource() -> AsyncIterator[None]:
    say("opened")
    try:
        yield
    finally:
        await close()


def blocking_work() -> None:
    say("began")
    try:
        if STUCK == "worker":
            threading.Event().wait()
        threading.Event().wait(WORK)
    except BaseException:
        # Celery ends a process of its pool by an exception in whatever runs there.
        say("torn")
        raise
    say("ended")


def blocking_close() -> None:
    say("closing")
    if STUCK == "closer":
        threading.Event().wait()
    threading.Event().wait(0.05)
    say("closed")
