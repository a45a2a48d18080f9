"""The audit of consumed events: each published one is handled, and each product is as its last event says."""

import asyncio
import json
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from quiesce.drill.product_audit import ProductFindings, audit_products
from quiesce.drill.product_load import ProductEvent, ProductLoad
from quiesce.drill.tables import Tables
from quiesce.drill.topic import read_committed
from quiesce.examples.order_service import schema as orders_schema
from quiesce.postgres import connect, inbox_entry, schema

if TYPE_CHECKING:
    from quiesce_pytest import MakeTopic

PUBLISHED = [ProductEvent("e1", "a", 1, 0, 0), ProductEvent("e2", "b", 2, 1, 5), ProductEvent("e3", "a", 3, 0, 1)]


def test_handled_and_as_new_as_the_last_event_is_clean() -> None:
    found = audit_products(PUBLISHED, {"e1", "e2", "e3", "of another one"}, {"a": 3, "b": 4}, {0: 2, 1: 6})
    assert found == ProductFindings(3, (), 0, ())
    assert (found.clean, found.faults(may_wait=False)) == (True, [])


def test_what_was_committed_and_not_handled_is_lost() -> None:
    found = audit_products(PUBLISHED, {"e1", "e3"}, {"a": 3}, {0: 2, 1: 6})
    assert found == ProductFindings(3, ("e2",), 0, ())
    assert found.faults(may_wait=True) == ["1 product events lost: e2"]


def test_what_was_neither_waits_which_only_an_interrupted_drill_may_end_with() -> None:
    for committed in ({0: 2, 1: 5}, {0: 2}):
        found = audit_products(PUBLISHED, {"e1", "e3"}, {"a": 3}, committed)
        assert found == ProductFindings(3, (), 1, ())
        assert (found.clean, found.faults(may_wait=True)) == (False, [])
        assert found.faults(may_wait=False) == ["1 product events still wait for the consumers"]


def test_a_row_that_is_older_than_what_was_handled_is_told() -> None:
    found = audit_products(PUBLISHED, {"e1", "e2", "e3"}, {"a": 1}, {0: 2, 1: 6})
    assert found.faults(may_wait=True) == ["2 products older than their last event: a, b"]
    assert found.as_dict() == {"published": 3, "lost": 0, "waiting": 0, "stale": 2}


def test_the_offsets_of_a_group_are_read_from_outside_of_it(kafka: str, topic: "MakeTopic") -> None:
    name = topic(partitions=2)
    assert read_committed(kafka, name, name) == {}
    member = Consumer({"bootstrap.servers": kafka, "group.id": name, "enable.auto.commit": False})
    try:
        member.commit(offsets=[TopicPartition(name, 1, 7)], asynchronous=False)
    finally:
        member.close()
    assert read_committed(kafka, name, name) == {1: 7}


async def test_the_load_knows_what_the_broker_has_and_ends_when_told(kafka: str, topic: "MakeTopic") -> None:
    name = topic()
    load = ProductLoad(kafka, name)
    running = asyncio.create_task(load.run())
    async with asyncio.timeout(15):
        while len(load.published) < 2:
            await asyncio.sleep(0.02)
        load.stop()
        await running
    known = {(one[0].encode(), *one[1:]) for one in load.published}
    # One more may be there, whose answer nobody waited for.
    found: set[tuple[object, ...]] = set()
    until = time.monotonic() + 15
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": name, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([name])
        while not known <= found and time.monotonic() < until:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                value, headers = json.loads(message.value() or b""), dict(message.headers() or [])
                found.add((headers["id"], value["id"], value["version"], message.partition(), message.offset()))
    finally:
        consumer.close()
    assert known <= found
    assert len(found - known) <= 1


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
