"""Pays orders through somebody else's API: one key per payment, made in the transaction that decides to pay.

The call goes out after that commit, and goes out again until its outcome is known: after a timeout, after a SIGKILL,
from another replica. Each time it has the same key and the same body, so the other side charges once.
"""

import json
import logging
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import aiohttp
import asyncpg

from quiesce import OutboxEvent, Stop, critical
from quiesce.lifecycle.crash_points import reach
from quiesce.postgres import enqueue

Pool: TypeAlias = "asyncpg.Pool[Any]"

log = logging.getLogger("order_service")

DECISIONS = 5
"""Payments that one round decides."""

ATTEMPTS = 15
"""Attempts that one round makes: more than it decides, so that those that are made again do not pile up."""

DECIDED = "payment.decided"
"""The key is committed and nothing was sent."""

CHARGED = "payment.charged"
"""The other side has charged, and we have not written it down."""

# The order's row is locked first, as everywhere, so an order either expires or is paid. The key is made here and
# nowhere else.
DECIDE = """
WITH chosen AS MATERIALIZED (
    SELECT id FROM orders WHERE status = 'placed' ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED
), paying AS (
    UPDATE orders AS o SET status = 'paying' FROM chosen WHERE o.id = chosen.id RETURNING o.id, o.total
)
INSERT INTO payment (order_id, amount) SELECT id, total FROM paying
"""

# Whoever takes one pushes it away, so that another replica leaves it alone meanwhile. If both send it, nothing happens.
DUE = """
WITH due AS MATERIALIZED (
    SELECT order_id FROM payment WHERE status = 'decided' AND next_at <= now()
    ORDER BY next_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE payment AS p SET attempts = attempts + 1, next_at = now() + make_interval(secs => $2 * 2 ^ least(attempts, 6))
FROM due WHERE p.order_id = due.order_id
RETURNING p.order_id, p.key, p.amount
"""

SETTLE = "UPDATE payment SET status = $2 WHERE order_id = $1 AND status = 'decided' RETURNING 1"
ORDER = "UPDATE orders SET status = $2 WHERE id = $1"

_DECLINED = 402


@dataclass(frozen=True, slots=True)
class PaymentTerms:
    """`url`: where charges are made. `every`, `retry`: seconds between rounds, and until a payment whose outcome is not
    known is tried again; that doubles with each attempt. `topic`: of the order's events."""

    url: str
    every: float
    retry: float
    topic: str


async def charge_payments(stop: Stop, db: Pool, client: aiohttp.ClientSession, terms: PaymentTerms) -> None:
    """Decides and makes payments until the service stops. What it has in hand then it finishes."""
    async for _ in stop.every(terms.every):
        await db.execute(DECIDE, DECISIONS)
        reach(DECIDED)
        for row in await db.fetch(DUE, ATTEMPTS, terms.retry):
            if stop.requested:
                # Its time comes again; another replica may be the one.
                return
            await critical(f"charge order {row['order_id']}", charge_one, row, db, client, terms)


async def charge_one(payment: Any, db: Pool, client: aiohttp.ClientSession, terms: PaymentTerms) -> None:
    """One attempt at one payment. An outcome that is not known is left for the next attempt."""
    paid = await charge(client, terms.url, payment["order_id"], payment["key"], payment["amount"])
    if paid is None:
        return
    reach(CHARGED)
    status, event = ("paid", "OrderPaid") if paid else ("refused", "OrderRefused")
    async with db.acquire() as connection, connection.transaction():
        order_id = payment["order_id"]
        # Once, although two replicas may hear of the same charge.
        if await connection.fetchval(SETTLE, order_id, status):
            await connection.execute(ORDER, order_id, status)
            await enqueue(connection, OutboxEvent(terms.topic, str(order_id), event, {"id": order_id}))


async def charge(client: aiohttp.ClientSession, url: str, order_id: int, key: UUID, amount: Decimal) -> bool | None:
    """True: charged. False: declined. None: nobody knows, so it has to be asked again with the same key."""
    # Every attempt sends the same bytes: another body under the same key would be refused.
    body = json.dumps({"order": order_id, "amount": str(amount)}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": f'"{key}"'}
    try:
        async with client.post(url, data=body, headers=headers) as response:
            await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        log.warning("the payment of order %d is not known yet: %s", order_id, str(error) or type(error).__name__)
        return None
    if 200 <= response.status <= 299:
        return True
    if response.status == _DECLINED:
        return False
    log.warning("the payment of order %d is tried again: it was answered with %d", order_id, response.status)
    return None
