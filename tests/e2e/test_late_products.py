"""Product events that come back from the dead letters, behind those that came after them."""

import asyncpg
import pytest

from quiesce.examples.order_service import schema
from quiesce.examples.order_service.products import LateTombstone, on_product, product_of
from quiesce.inbox.record import Record

REDRIVEN = (("quiesce-topic", b"product-events"), ("quiesce-redrives", b"1"))


def event(version: int | None, headers: tuple[tuple[str, bytes | None], ...] = ()) -> Record:
    value = None if version is None else b'{"id": "p1", "name": "n", "price": "1.50", "version": %d}' % version
    return Record("product-events", 0, 0, b"p1", value, headers, 0.0)


@pytest.mark.needs("postgres")
async def test_a_late_event_changes_nothing_that_is_newer(database: str) -> None:
    connection = await asyncpg.connect(database, timeout=30)
    try:
        await schema.apply(connection)

        async def versions(record: Record) -> list[int]:
            await on_product(record, connection, product_of(record))
            return [row["version"] for row in await connection.fetch("SELECT version FROM product")]

        assert await versions(event(4)) == [4]
        assert await versions(event(3, REDRIVEN)) == [4]
        with pytest.raises(LateTombstone, match="have its product deleted anew"):
            await versions(event(None, REDRIVEN))
        assert await versions(event(5)) == [5]
        assert await versions(event(None)) == []
    finally:
        await connection.close(timeout=5)
