"""aiohttp's `web.run_app`: the resource is one of `cleanup_ctx`."""

from collections.abc import AsyncIterator

import scene
from aiohttp import web


async def answer(request: web.Request) -> web.Response:
    await scene.work()
    return web.Response(text="done")


async def resource(app: web.Application) -> AsyncIterator[None]:
    async with scene.resource():
        yield


if __name__ == "__main__":
    app = web.Application()
    app.router.add_get("/", answer)
    app.cleanup_ctx.append(resource)
    limit = {} if scene.LIMIT is None else {"shutdown_timeout": scene.LIMIT}
    web.run_app(app, host="127.0.0.1", port=scene.PORT, **limit)
