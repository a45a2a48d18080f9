"""Expires orders that nobody paid."""

from typing import Any, TypeAlias

import asyncpg

from quiesce import OutboxEvent
from quiesce.postgres import enqueue

Pool: TypeAlias = "asyncpg.Pool[Any]"

# Small pieces, and never one that another replica has in hand. The row lock also puts this event behind the
# one that placed the order: events of one order are enqueued under the lock of its row.
EXPIRE = """
UPDATE orders SET status = 'expired' WHERE id IN (
    SELECT id FROM orders WHERE status = 'placed' AND created_at < now() - make_interval(secs => $1)
    ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED
) RETURNING id
"""
PIECE = 200


async def expire_orders(db: Pool, older_than: float, topic: str) -> None:
    """Expires orders older than this many seconds, and says so in the same transaction."""
    expired = PIECE
    while expired == PIECE:
        async with db.acquire() as connection, connection.transaction():
            ids = [row["id"] for row in await connection.fetch(EXPIRE, older_than, PIECE)]
            for order_id in ids:
                await enqueue(connection, OutboxEvent(topic, str(order_id), "OrderExpired", {"id": order_id}))
        expired = len(ids)
