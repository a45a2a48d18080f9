"""What the audit is given: read from a real broker and a real database."""

import threading
import time
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from quiesce.drill.audit import OutboxRow
from quiesce.drill.tables import Tables
from quiesce.drill.topic import find_broker, read_topic
from quiesce.errors import Unavailable
from quiesce.examples.order_service import schema as orders_schema
from quiesce.postgres import connect, schema

if TYPE_CHECKING:
    from quiesce_pytest import MakeTopic


def publish(bootstrap: str, topic: str, *events: tuple[str, str]) -> None:
    """Events as pairs of id and key, in this order."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for event_id, key in events:
        producer.produce(topic, b"{}", key, headers={"id": event_id.encode(), "type": b"T"})
    assert producer.flush(10) == 0


def test_everything_on_the_topic_is_read_with_its_place(kafka: str, topic: "MakeTopic") -> None:
    name = topic(partitions=3)
    publish(kafka, name, ("a", "1"), ("b", "1"), ("a", "1"), ("c", "2"), ("", "3"))

    arrivals = read_topic(kafka, name, ["a", "b", "c"], quiet=0.5)

    assert sorted((arrival.event_id, arrival.key) for arrival in arrivals) == [
        ("", "3"),
        ("a", "1"),
        ("a", "1"),
        ("b", "1"),
        ("c", "2"),
    ]
    of_one = [arrival for arrival in arrivals if arrival.key == "1"]
    assert [arrival.event_id for arrival in sorted(of_one, key=lambda arrival: arrival.offset)] == ["a", "b", "a"]
    assert len({arrival.partition for arrival in of_one}) == 1


def test_what_never_comes_is_waited_for_no_longer_than_its_patience(kafka: str, topic: "MakeTopic") -> None:
    name = topic()
    publish(kafka, name, ("a", "1"))
    began = time.monotonic()

    arrivals = read_topic(kafka, name, ["a", "never"], quiet=0.2, patience=1.0)

    assert [arrival.event_id for arrival in arrivals] == ["a"]
    assert 1.0 <= time.monotonic() - began < 8.0


def test_what_comes_late_is_waited_for(kafka: str, topic: "MakeTopic") -> None:
    name = topic()
    publish(kafka, name, ("a", "1"))
    late = threading.Timer(0.8, publish, (kafka, name, ("b", "1")))
    late.start()

    arrivals = read_topic(kafka, name, ["a", "b"], quiet=0.2, patience=10.0)
    late.join(10)

    assert [arrival.event_id for arrival in arrivals] == ["a", "b"]


def test_reading_can_be_given_up(kafka: str, topic: "MakeTopic") -> None:
    cancelled = threading.Event()
    cancelled.set()
    began = time.monotonic()

    assert read_topic(kafka, topic(), ["never"], patience=30.0, cancelled=cancelled) == []
    assert time.monotonic() - began < 5.0


def test_a_broker_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiesce.drill.topic._METADATA_BOUND", 0.5)

    with pytest.raises(Unavailable, match=r"no broker answers at 127.0.0.1:1 within 0.5 s"):
        find_broker("127.0.0.1:1")


async def test_tables_tell_backlog_rows_and_orders(database: str) -> None:
    async with connect(database) as connection:
        await schema.apply(connection)
        await orders_schema.apply(connection)
        ids = [str(uuid.uuid4()) for _ in range(4)]
        for event_id, topic, dispatched, dead in zip(
            ids, ("t", "t", "other", "t"), (True, False, False, False), (False, False, False, True), strict=True
        ):
            await connection.execute(
                "INSERT INTO outbox_event (id, aggregate_id, topic, type, dispatched_at, dead_at) VALUES "
                "($1, '7', $2, 'OrderPlaced', CASE WHEN $3 THEN now() END, CASE WHEN $4 THEN now() END)",
                event_id,
                topic,
                dispatched,
                dead,
            )
        await connection.execute("INSERT INTO orders (customer, total, status) VALUES ('c', 1, 'expired')")
        tables = Tables(database)

        rows, orders = await tables.read("t")
        waiting = await tables.drained(lambda: 0.0)
        await connection.execute("UPDATE outbox_event SET dispatched_at = now()")
        drained = await tables.drained(lambda: 10.0)

    assert [(row.event_id, row.key, row.type, row.dispatched) for row in rows] == [
        (ids[0], "7", "OrderPlaced", True),
        (ids[1], "7", "OrderPlaced", False),
        (ids[3], "7", "OrderPlaced", False),
    ]
    assert [row.position for row in rows] == sorted(row.position for row in rows)
    assert isinstance(rows[0], OutboxRow)
    assert orders == {"1": "expired"}
    # A dead letter waits for nobody; the audit counts it.
    assert (waiting, drained) == (2, 0)


async def test_an_order_that_is_yet_to_expire_is_waited_for(database: str) -> None:
    async with connect(database) as connection:
        await schema.apply(connection)
        await orders_schema.apply(connection)
        await connection.execute("INSERT INTO orders (customer, total) VALUES ('c', 1)")
        asked: list[float] = []

        def within() -> float:
            asked.append(0.0)
            return 60.0 if len(asked) < 3 else 0.0

        assert await Tables(database).drained(within, every=0.01) == 0
        assert len(asked) == 3


async def test_a_database_that_is_away_is_told() -> None:
    with pytest.raises(Unavailable):
        await Tables("postgresql://postgres@127.0.0.1:1/postgres").read("t")
