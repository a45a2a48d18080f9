"""uvicorn inside a program: the resource is opened and closed around `await server.serve()`."""

import asyncio

import scene
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route
from with_uvicorn import answer


async def main() -> None:
    limit = {} if scene.LIMIT is None else {"timeout_graceful_shutdown": int(scene.LIMIT)}
    app = Starlette(routes=[Route("/", answer)])
    config = uvicorn.Config(app, host="127.0.0.1", port=scene.PORT, **limit)
    async with scene.resource():
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main())
