"""`enqueue`: the event shares the fate of the caller's transaction."""

import json
from uuid import uuid4

import asyncpg
import pytest
from outbox_table import event, write

from quiesce.errors import EnqueueError, EventTooLarge, PayloadNotSerialisable, SchemaMissing
from quiesce.outbox.event import OutboxEvent
from quiesce.postgres import connect, enqueue, open_pool
from quiesce.postgres.driver import Connection


async def count(db: Connection) -> int:
    number = await db.fetchval("SELECT count(*) FROM outbox_event")
    assert isinstance(number, int)
    return number


async def test_a_commit_leaves_one_and_a_rollback_none(db: Connection) -> None:
    transaction = db.transaction()
    await transaction.start()
    gone = await enqueue(db, event())
    await transaction.rollback()
    async with db.transaction():
        kept = await enqueue(db, event("k", {"total": 3}, colour="blue"))
    (row,) = await db.fetch("SELECT id, aggregate_id, topic, type, payload, headers, lane FROM outbox_event")
    assert row["id"] == kept != gone
    assert (row["aggregate_id"], row["topic"], row["type"]) == ("k", "orders", "Placed")
    assert row["payload"] == b'{"total":3}'
    assert json.loads(row["headers"]) == {"colour": "blue"}


async def test_a_savepoint_takes_its_event_along(db: Connection) -> None:
    async with db.transaction():
        inner = db.transaction()
        await inner.start()
        await enqueue(db, event())
        await inner.rollback()
        kept = await enqueue(db, event())
    assert await db.fetchval("SELECT id FROM outbox_event") == kept


async def test_an_id_of_the_callers_own_is_kept(db: Connection) -> None:
    own = uuid4()
    async with db.transaction():
        assert await enqueue(db, OutboxEvent("orders", "k", "Placed", id=own)) == own
    with pytest.raises(asyncpg.UniqueViolationError):
        await write(db, OutboxEvent("orders", "k", "Placed", id=own))


async def test_none_is_a_tombstone(db: Connection) -> None:
    await write(db, event("k", None))
    assert await db.fetchval("SELECT payload FROM outbox_event") is None


async def test_outside_a_transaction_it_is_refused(db: Connection) -> None:
    with pytest.raises(EnqueueError, match=r"connection\.transaction\(\)"):
        await enqueue(db, event())
    assert await count(db) == 0


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (event("k", object()), PayloadNotSerialisable),
        (event("k", b"x" * 2000), EventTooLarge),
        (event("", b""), EnqueueError),
        (event("k\0", b""), EnqueueError),
    ],
)
async def test_a_refused_event_leaves_the_transaction_usable(
    db: Connection, refused: OutboxEvent, error: type[EnqueueError]
) -> None:
    async with db.transaction():
        with pytest.raises(error):
            await enqueue(db, refused, max_event_bytes=1000)
        kept = await enqueue(db, event())
    assert await db.fetchval("SELECT id FROM outbox_event") == kept


async def test_it_takes_a_connection_of_a_pool(outbox: str, db: Connection) -> None:
    resource = open_pool(outbox)
    pool = await resource.open()
    async with pool.acquire() as connection, connection.transaction():
        await enqueue(connection, event())
    await pool.close()
    assert await count(db) == 1


async def test_a_json_codec_of_the_applications_does_not_spoil_the_headers(db: Connection) -> None:
    await db.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    await write(db, event("k", b"", colour="blue"))
    assert await db.fetchval("SELECT jsonb_typeof(headers) FROM outbox_event") == "object"


async def test_a_missing_table_names_the_command(bare: str) -> None:
    async with connect(bare) as connection:
        with pytest.raises(SchemaMissing, match="quiesce outbox schema apply"):
            await write(connection, event())
