"""`POST /orders` and `GET /orders/{id}`."""

from decimal import Decimal
from typing import Annotated, Any, TypeAlias

import asyncpg
from fastapi import FastAPI, HTTPException
from pydantic import AfterValidator, BaseModel, Field

from quiesce import OutboxEvent
from quiesce.asgi import Idempotency, IdempotencyMiddleware
from quiesce.postgres import IdempotencyKeys, enqueue

Pool: TypeAlias = "asyncpg.Pool[Any]"

INSERT = "INSERT INTO orders (customer, total) VALUES ($1, $2) RETURNING id"


def _storable(text: str) -> str:
    # PostgreSQL cannot store it; said here, it is the client's fault and not a failure of ours.
    if "\0" in text:
        raise ValueError("takes text without NUL")
    return text


class Order(BaseModel):
    customer: Annotated[str, AfterValidator(_storable)] = Field(min_length=1, max_length=200)
    total: Decimal = Field(ge=0, max_digits=12, decimal_places=2)


def add_routes(app: FastAPI, db: Pool, topic: str, keep_keys: float) -> None:
    """Adds the routes to the application. Idempotency keys are known for `keep_keys` seconds."""
    # Nobody logs in here, so all callers share one set of keys. With users, `scope` says which of them it is.
    keys = IdempotencyKeys(db, hold="transaction", keep=keep_keys)
    idempotency = Idempotency(keys, scope="none", required=False)
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)

    # The row, its event, the key and the response are one transaction. It is committed before the response leaves.
    @app.post("/orders", status_code=201)
    @idempotency.in_transaction
    async def place(order: Order, connection: Any) -> dict[str, int]:
        order_id = await connection.fetchval(INSERT, order.customer, order.total)
        placed = {"id": order_id, "customer": order.customer, "total": str(order.total)}
        await enqueue(connection, OutboxEvent(topic, str(order_id), "OrderPlaced", placed))
        return {"id": order_id}

    @app.get("/orders/{order_id}")
    async def read(order_id: int) -> dict[str, Any]:
        row = None
        if 0 < order_id < 2**63:
            row = await db.fetchrow("SELECT id, customer, total, status FROM orders WHERE id = $1", order_id)
        if row is None:
            raise HTTPException(404, f"no order {order_id}")
        return {**row, "total": str(row["total"])}
