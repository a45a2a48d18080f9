"""procrastinate's worker inside a program: the work is a job, the resource is opened around the worker."""

import asyncio
import os

import scene
from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=os.environ["PEER_DSN"]))


@app.task(name="work")
async def work() -> None:
    await scene.work()


async def main() -> None:
    limit = {} if scene.LIMIT is None else {"shutdown_graceful_timeout": scene.LIMIT}
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await work.defer_async()
        async with scene.resource():
            await app.run_worker_async(**limit)


if __name__ == "__main__":
    asyncio.run(main())
