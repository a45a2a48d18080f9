"""`POST /orders` and `GET /orders/{id}`."""

from decimal import Decimal
from typing import Annotated, Any, TypeAlias

import asyncpg
from fastapi import FastAPI, Header, HTTPException, Response
from pydantic import AfterValidator, BaseModel, Field

from quiesce import OutboxEvent
from quiesce.postgres import enqueue

Pool: TypeAlias = "asyncpg.Pool[Any]"

# The row and its event are one transaction. A key that is taken makes no row, and so no second event.
INSERT = """
INSERT INTO orders (customer, total, idempotency_key) VALUES ($1, $2, $3)
ON CONFLICT (idempotency_key) DO NOTHING RETURNING id
"""
BY_KEY = "SELECT id, customer, total FROM orders WHERE idempotency_key = $1"


def _storable(text: str) -> str:
    # PostgreSQL cannot store it; said here, it is the client's fault and not a failure of ours.
    if "\0" in text:
        raise ValueError("takes text without NUL")
    return text


class Order(BaseModel):
    customer: Annotated[str, AfterValidator(_storable)] = Field(min_length=1, max_length=200)
    total: Decimal = Field(ge=0, max_digits=12, decimal_places=2)


def add_routes(app: FastAPI, db: Pool, topic: str) -> None:
    """Adds the routes to the application."""

    @app.post("/orders", status_code=201)
    async def place(
        order: Order, response: Response, idempotency_key: Annotated[str | None, Header(max_length=255)] = None
    ) -> dict[str, int]:
        async with db.acquire() as connection, connection.transaction():
            order_id = await connection.fetchval(INSERT, order.customer, order.total, idempotency_key)
            if order_id is None:
                response.headers["Idempotency-Replayed"] = "true"
                return {"id": await _placed_before(connection, order, idempotency_key)}
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


async def _placed_before(connection: Any, order: Order, key: str | None) -> int:
    row = await connection.fetchrow(BY_KEY, key)
    if (row["customer"], row["total"]) != (order.customer, order.total):
        raise HTTPException(422, "this Idempotency-Key was used for another order")
    return int(row["id"])
