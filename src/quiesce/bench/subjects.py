"""The services that are measured, each as a process of its own: `quiesce run quiesce.bench.subjects:NAME`.

Each says when it is up, with the modules it has loaded and the CPU it has used, as one line of JSON.
"""

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from quiesce.lifecycle.ports import Stop
from quiesce.supervisor.decorator import service
from quiesce.supervisor.service import Service

SECONDS = "QUIESCE_BENCH_SECONDS"
"""How long `waiting` and `ticking` are watched."""
SETTLED = 0.4
"""Seconds after which whatever belongs to the start is over."""
WATCHED = 50
MANY = 1000


def mark(event: str, **facts: object) -> None:
    os.write(1, (json.dumps({"event": event, "cpu": time.process_time(), **facts}) + "\n").encode())


def up() -> None:
    mark("up", modules=sorted(sys.modules))


def after_start(event: Any) -> None:
    asyncio.get_running_loop().call_later(SETTLED, event)


async def nothing() -> None:
    pass


async def goes_round(stop: Stop, seconds: float) -> None:
    async for _ in stop.every(seconds):
        await nothing()


def watch() -> None:
    """Says the CPU used now and `SECONDS` later, then asks for the end."""
    seconds = float(os.environ.get(SECONDS, "3"))
    began = time.monotonic()
    mark("watched", modules=[])

    def end() -> None:
        mark("seen", elapsed=time.monotonic() - began)
        os.kill(os.getpid(), signal.SIGTERM)

    asyncio.get_running_loop().call_later(seconds, end)


def fifty(s: Service, interval: float) -> None:
    for number in range(WATCHED // 2):
        s.every(interval, nothing, name=f"periodic-{number}")
        s.loop(goes_round, interval, name=f"loop-{number}")


@service("bench-waiting")
async def waiting(s: Service) -> None:
    fifty(s, 3600.0)
    after_start(watch)


@service("bench-ticking")
async def ticking(s: Service) -> None:
    fifty(s, 1.0)
    after_start(watch)


@service("bench-idle")
async def idle(s: Service) -> None:
    fifty(s, 3600.0)
    after_start(up)


@service("bench-idle-http")
async def idle_http(s: Service) -> None:
    fifty(s, 3600.0)
    s.http(answers, host="127.0.0.1", port=0)
    after_start(up)


@service("bench-many")
async def many(s: Service) -> None:
    for number in range(MANY):
        s.every(3600.0, nothing, name=f"periodic-{number}")
    after_start(up)


async def answers(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
