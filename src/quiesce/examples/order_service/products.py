"""Keeps a copy of the products that another service publishes."""

import json
from decimal import Decimal
from typing import Any, NamedTuple

from quiesce.inbox import Record
from quiesce.inbox.retry_headers import redrives

# The inbox keeps the same event from coming again. The version is for another one that comes late: a dead letter that
# is redriven after its successor.
UPSERT = """
INSERT INTO product (id, name, price, version) VALUES ($1, $2, $3, $4)
ON CONFLICT (id) DO UPDATE SET name = excluded.name, price = excluded.price, version = excluded.version
WHERE product.version < excluded.version
"""


class LateTombstone(Exception):
    """It came back from the dead letters, and nothing says whether the product was written again since."""

    reason_code = "late_tombstone"


class Product(NamedTuple):
    id: str
    name: str
    price: Decimal
    version: int


def product_of(record: Record) -> Product | None:
    """The product of an event; None for a tombstone. What it raises makes the record a dead letter."""
    if record.value is None:
        return None
    told = json.loads(record.value)
    return Product(str(told["id"]), str(told["name"]), Decimal(str(told["price"])), int(told["version"]))


async def on_product(record: Record, connection: Any, product: Product | None) -> None:
    """Handles one product event, in the transaction in which the inbox has marked it.

    Raises:
        LateTombstone: a tombstone was redriven. It has no version, and could delete what is newer.
    """
    if product is not None:
        await connection.execute(UPSERT, *product)
    elif redrives(record):
        raise LateTombstone(f"{record} has no version: have its product deleted anew at its source, and dismiss it")
    else:
        await connection.execute("DELETE FROM product WHERE id = $1", (record.key or b"").decode(errors="replace"))
