"""quiesce: `worker` works in a loop, `request` in an HTTP request; the resource is opened first."""

from typing import Any

import scene

from quiesce import Budget, Service, Stop, service

if scene.LIMIT is None:
    budget = Budget()
else:
    half = scene.LIMIT
    budget = Budget(grace_period=10, prestop=0, http=half, workers=half, producers=1, pools=1, report=1, margin=1)


async def rounds(stop: Stop) -> None:
    async for _ in stop.every(0.1):
        await scene.work()


@service("worker", budget=budget)
async def worker(s: Service) -> None:
    await s.open(scene.resource(), name="pool")
    s.loop(rounds)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await scene.work()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})


@service("request", budget=budget)
async def request(s: Service) -> None:
    await s.open(scene.resource(), name="pool")
    s.http(answer, host="127.0.0.1", port=scene.PORT)
