"""uvicorn and hypercorn by their command lines: the resource is one of the application's lifespan."""

import contextlib
from collections.abc import AsyncIterator

import scene
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def answer(request: Request) -> PlainTextResponse:
    await scene.work()
    return PlainTextResponse("done")


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with scene.resource():
        yield


app = Starlette(routes=[Route("/", answer)], lifespan=lifespan)
