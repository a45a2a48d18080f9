"""Services for other people's servers. What they write to standard error is what the tests wait for."""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse

from quiesce import Budget, Part, Service, Stop, critical, service
from quiesce.asgi import application, lifespan, stop_of

# Nobody else sets up logging for us here: a guest's log is its host's affair.
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")

BUDGET = Budget(grace_period=7, prestop=0, http=1.5, workers=1, producers=1, pools=1, report=0.2, margin=0.2)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def thing(name: str) -> AsyncIterator[str]:
    say(f"opened {name}")
    yield name
    say(f"closed {name}")


async def pay() -> None:
    async def step() -> None:
        await asyncio.sleep(0.2)
        say("paid a half")

    async def both() -> None:
        say("section began")
        async with asyncio.TaskGroup() as group:
            group.create_task(step())
            group.create_task(step())
        say("section ended")

    await critical("pay", both)


async def iteration() -> None:
    say("iteration began")
    await asyncio.sleep(0.3)
    say("iteration ended")


def routes(app: FastAPI) -> None:
    @app.get("/slow")
    async def slow(request: Request) -> str:
        say("request began")
        await asyncio.sleep(0.5)
        say(f"request answered with {request.app.state.pool}")
        return "ok"

    @app.get("/rolls-back")
    async def rolls_back(request: Request) -> None:
        say("request began")
        try:
            await asyncio.sleep(3600)
        finally:
            say("request unwinds")
            await asyncio.sleep(0.2)
            say(f"request rolled back with {request.app.state.pool}")

    @app.get("/block")
    async def block() -> str:
        say("request blocks")
        time.sleep(0.8)  # on purpose: nothing on this loop can run meanwhile
        say("request unblocks")
        return "ok"

    @app.get("/events")
    async def events(request: Request, polite: bool = False) -> StreamingResponse:
        stop = stop_of(request)

        async def stream() -> AsyncIterator[str]:
            say("stream began")
            try:
                while not (polite and stop.requested):
                    yield "data: tick\n\n"
                    await asyncio.sleep(0.02)
            finally:
                say("stream unwound")

        return StreamingResponse(stream(), media_type="text/event-stream")


async def open_all(s: Service, app: FastAPI) -> None:
    await s.open(thing("producer"), name="producer", part=Part.PRODUCERS)
    app.state.pool = await s.open(thing("pool"), name="pool")
    s.every(0.05, iteration, name="periodic")
    if os.environ.get("PAYS"):
        s.every(0.05, pay)
    if os.environ.get("DIES"):
        s.loop(dies)


async def dies(stop: Stop) -> None:
    await stop.sleep(0.3)
    raise ValueError("the worker is broken")


# The form for a service that makes its application itself.


@service("orders", budget=BUDGET)
async def orders(s: Service) -> None:
    if os.environ.get("FAILS"):
        raise RuntimeError("no such luck")
    app = FastAPI()
    s.http(app, host="127.0.0.1", port=int(os.environ.get("PORT", "0")))
    routes(app)
    await open_all(s, app)


served = application(orders)
hearing = application(orders, hear_signals=True)


# The form for an application that exists already: the same function is a host under `quiesce run`, too.


@service("shop", budget=BUDGET)
async def shop(s: Service) -> None:
    s.http(shop_app, host="127.0.0.1", port=int(os.environ.get("PORT", "0")))
    await open_all(s, shop_app)


shop_app = FastAPI(lifespan=lifespan(shop))
routes(shop_app)


@service("shop-hearing", budget=BUDGET)
async def shop_hearing(s: Service) -> None:
    # Without `s.http`: a service that was never meant to be a host.
    await open_all(s, shop_hearing_app)


shop_hearing_app = FastAPI(lifespan=lifespan(shop_hearing, hear_signals=True))
routes(shop_hearing_app)
