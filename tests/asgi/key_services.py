"""Services whose handlers take long, with idempotency keys held in both ways. The environment says where and how."""

import asyncio
import os
from typing import Any, Literal, cast

from fastapi import FastAPI

from quiesce import Budget, Service, service
from quiesce.asgi import Idempotency, IdempotencyMiddleware
from quiesce.postgres import IdempotencyKeys, open_pool
from quiesce.testing.crash_points import arm_from_environment

arm_from_environment()

QUICK = Budget(grace_period=8, prestop=0, http=1, workers=1, producers=1, pools=1, report=0.5, margin=0.5)
INSERT = "INSERT INTO effect (name) VALUES ($1)"


@service("shop", budget=QUICK)
async def shop(s: Service) -> None:
    app = FastAPI()
    s.http(app, host="127.0.0.1", port=int(os.environ["PORT"]))
    db = await s.open(open_pool(os.environ["DATABASE_URL"], max_size=3))
    hold = cast(Literal["transaction", "lease"], os.environ["HOLD"])
    idempotency = Idempotency(IdempotencyKeys(db, hold=hold, lease=1.0), scope="none", wait=20)
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)

    @app.post("/orders", status_code=201)
    async def order(sleep: float = 0.0) -> dict[str, Any]:
        async with idempotency.transaction() as connection:
            await connection.execute(INSERT, "order")
        print("written, not committed", flush=True)
        await asyncio.sleep(float(os.environ.get("SLEEP", "0")))
        return {"attempt": idempotency.attempt}
