"""Services that serve: what they write to standard error is what the tests wait for."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from small_services import iteration, say, thing

from quiesce import Budget, Part, Service, service
from quiesce.asgi import stop_of

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


async def app(scope: Any, receive: Receive, send: Send) -> None:
    """`/events` streams for ever, `/polite` until its token says stop, `/slow` answers after SLOW seconds."""
    path = scope["path"]
    if path in ("/events", "/polite"):
        await stream(scope, send)
        return
    if path == "/slow":
        say("request began")
        await asyncio.sleep(float(os.environ.get("SLOW", "0.5")))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def stream(scope: Any, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    polite = scope["path"] == "/polite"
    try:
        while not (polite and stop_of(scope).requested):
            await send({"type": "http.response.body", "body": b"data: tick\n\n", "more_body": True})
            await asyncio.sleep(0.02)
        await send({"type": "http.response.body", "body": b"data: bye\n\n"})
    finally:
        await asyncio.sleep(0.1)
        say(f"{scope['path']} unwound")


def budget(lame_duck: float = 0) -> Budget:
    return Budget(
        grace_period=8, prestop=0, lame_duck=lame_duck, http=1, workers=1, producers=1, pools=1, report=0.2, margin=0.2
    )


@service("streams", budget=budget())
async def streams(s: Service) -> None:
    await serve(s)


@service("lame-duck", budget=budget(lame_duck=1.5))
async def lame_duck(s: Service) -> None:
    await serve(s)


@service("mesh", budget=budget(lame_duck=1.5))
async def mesh(s: Service) -> None:
    await serve(s, readiness_while_draining=200)


async def serve(s: Service, **settings: Any) -> None:
    s.http(app, host="127.0.0.1", port=int(os.environ["PORT"]), **settings)
    await s.open(thing("producer"), name="producer", part=Part.PRODUCERS)
    await s.open(thing("pool"), name="pool")
    s.every(0.05, iteration, name="periodic")
