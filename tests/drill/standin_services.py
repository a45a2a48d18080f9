"""A service without a database, as a replica for the fleet: answers every request with its own port."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from quiesce import Budget, Service, service

QUICK = Budget(grace_period=8, prestop=0.2, http=1, workers=1, producers=1, pools=1, report=0.5, margin=0.5)


async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    """`/slow` takes half a second, `/hang` for ever, `/die` ends the process."""
    if scope["path"] == "/die":
        os._exit(3)
    if scope["path"] == "/slow":
        await asyncio.sleep(0.5)
    if scope["path"] == "/hang":
        # Until the client goes, as a handler that waits for it would.
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    body = os.environ["PORT"].encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@service("standin", budget=QUICK)
async def standin(s: Service) -> None:
    s.http(app, host=os.environ["HOST"], port=int(os.environ["PORT"]))


@service("stubborn", budget=QUICK)
async def stubborn(s: Service) -> None:
    """Its worker does not end the iteration in hand."""

    async def tick() -> None:
        print("begun", flush=True)
        await asyncio.sleep(3600)

    s.every(0.01, tick, name="clock")
    s.http(app, host=os.environ["HOST"], port=int(os.environ["PORT"]))


@service("broken", budget=QUICK)
async def broken(s: Service) -> None:
    raise RuntimeError("this one never starts")
