"""The audit of consumed events: each published one is handled, and each product is as its last event says."""

import asyncio
import json
from typing import TYPE_CHECKING

from confluent_kafka import Consumer

from quiesce.drill.product_audit import ProductFindings, audit_products
from quiesce.drill.product_load import ProductEvent, ProductLoad
from quiesce.drill.tables import Tables
from quiesce.examples.order_service import schema as orders_schema
from quiesce.postgres import connect, inbox_entry, schema

if TYPE_CHECKING:
    from quiesce_pytest import MakeTopic

PUBLISHED = [ProductEvent("e1", "a", 1), ProductEvent("e2", "b", 2), ProductEvent("e3", "a", 3)]


def test_handled_and_as_new_as_the_last_event_is_clean() -> None:
    found = audit_products(PUBLISHED, {"e1", "e2", "e3", "of another one"}, {"a": 3, "b": 4})
    assert found == ProductFindings(3, (), ())
    assert (found.clean, found.faults()) == (True, [])


def test_what_nobody_handled_and_what_is_older_than_its_last_event_is_told() -> None:
    found = audit_products(PUBLISHED, {"e1", "e3"}, {"a": 1})
    assert found == ProductFindings(3, missed=("e2",), stale=("a", "b"))
    assert found.faults() == [
        "1 product events not handled: e2, ...",
        "2 products older than their last event: a, ...",
    ]
    assert found.as_dict() == {"published": 3, "missed": 1, "stale": 2}


async def test_the_load_knows_what_the_broker_has_and_ends_when_told(kafka: str, topic: "MakeTopic") -> None:
    name = topic()
    load = ProductLoad(kafka, name)
    running = asyncio.create_task(load.run())
    async with asyncio.timeout(15):
        while len(load.published) < 2:
            await asyncio.sleep(0.02)
        load.stop()
        await running
    known = list(load.published)
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": name, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([name])
        messages = consumer.consume(len(known), 15)
    finally:
        consumer.close()
    values = [json.loads(message.value() or b"") for message in messages]
    assert [(value["id"], value["version"]) for value in values] == [(one.product, one.version) for one in known]
    ids = [dict(message.headers() or [])["id"] for message in messages]
    assert ids == [one.event_id.encode() for one in known]


async def test_the_tables_tell_marks_and_versions(database: str) -> None:
    async with connect(database) as db:
        await schema.apply(db)
        await orders_schema.apply(db)
        async with db.transaction():
            await inbox_entry(db, "orders", "e1")
            await inbox_entry(db, "someone else", "e2")
        await db.execute("INSERT INTO product VALUES ('a', 'a', 1, 7)")
    tables = Tables(database)
    assert await tables.products("orders") == ({"e1"}, {"a": 7})
    began = asyncio.get_running_loop().time()
    assert await tables.drained(lambda: 30.0, "orders", {"e1"}) == 0
    assert asyncio.get_running_loop().time() - began < 20.0
    await tables.drained(lambda: 0.3, "orders", {"e1", "e2"})
    assert asyncio.get_running_loop().time() - began >= 0.3
