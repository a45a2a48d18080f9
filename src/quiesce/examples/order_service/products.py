"""Keeps a copy of the products that another service publishes."""

import json
import logging
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

import asyncpg

from quiesce.inbox import Record

Pool: TypeAlias = "asyncpg.Pool[Any]"

log = logging.getLogger("order_service")

# Idempotent by its version: the same event again, or an older one, changes nothing.
UPSERT = """
INSERT INTO product (id, name, price, version) VALUES ($1, $2, $3, $4)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, price = excluded.price, version = excluded.version
WHERE product.version < excluded.version
"""


async def on_product(record: Record, db: Pool) -> None:
    """Handles one product event. What cannot be read is told and passed over: it would block its partition."""
    if record.value is None:
        await db.execute("DELETE FROM product WHERE id = $1", (record.key or b"").decode(errors="replace"))
        return
    try:
        product = json.loads(record.value)
        values = (str(product["id"]), str(product["name"]), Decimal(str(product["price"])), int(product["version"]))
    except (ValueError, KeyError, TypeError, InvalidOperation) as error:
        log.warning("passed over %s: %s: %s", record, type(error).__name__, error)
        return
    await db.execute(UPSERT, *values)
