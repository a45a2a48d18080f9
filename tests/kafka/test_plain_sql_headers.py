"""Headers that plain SQL may write and Kafka cannot take: each costs its own event, and no other."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from broker import records
from outbox_databases import OpenLog, OpenStore

from quiesce.kafka import KafkaPublisher
from quiesce.outbox.event import PlainEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.outbox.ports import OutboxStore
from quiesce.postgres.driver import Connection
from quiesce.testing.contracts.publisher import within
from quiesce_pytest import MakeTopic

NO_TEXT = {
    "number": ('{"n": 5}', "header 'n' is a number"),
    "long number": ('{"n": 1' + "0" * 5_000 + "}", "header 'n' is a number"),
    "truth": ('{"n": true}', "header 'n' is true or false"),
    "null": ('{"a": "text", "n": null}', "header 'n' is null"),
    "list": ('{"n": ["a"]}', "header 'n' is a list"),
    "object": ('{"n": {}}', "header 'n' is an object"),
    "deep": ('{"n": ' + "[" * 3_000 + "]" * 3_000 + "}", "nested too deep"),
}


@pytest.fixture
async def publisher(kafka: str) -> AsyncIterator[KafkaPublisher]:
    publisher = await KafkaPublisher(kafka).open()
    yield publisher
    await publisher.close(within(5))


@pytest.fixture(params=["log", "row"])
async def store(request: pytest.FixtureRequest, open_log: OpenLog, open_store: OpenStore) -> OutboxStore:
    return await (open_log() if request.param == "log" else open_store())


async def insert(db: Connection, topic: str, key: str, headers: str) -> UUID:
    event_id = uuid4()
    await db.execute(
        "INSERT INTO outbox_event (id, topic, aggregate_id, type, payload, headers) "
        "VALUES ($1, $2, $3, 'Placed', '{}', $4::text::jsonb)",
        event_id,
        topic,
        key,
        headers,
    )
    return event_id


async def test_each_is_a_dead_letter_that_names_the_header_and_all_others_flow(
    kafka: str, topic: MakeTopic, publisher: KafkaPublisher, store: OutboxStore, db: Connection
) -> None:
    name = topic(partitions=1)
    fine, wrong = [], {}
    for headers, told in NO_TEXT.values():
        fine.append(await insert(db, name, "k", "{}"))
        wrong[await insert(db, name, "k", headers)] = told
        fine.append(await insert(db, name, "k", '{"a": "text"}'))
    claim = await store.claim(100)
    assert len(claim.events) == len(fine) + len(wrong)
    async with asyncio.timeout(15):
        outcomes = await publisher.publish(claim.events)
    settled = await claim.settle(outcomes)
    assert (settled.dispatched, settled.dead) == (len(fine), len(wrong))
    reasons = {row["event_id"]: row["reason"] for row in await db.fetch("SELECT * FROM outbox_parked")}
    assert reasons.keys() == wrong.keys()
    for event_id, told in wrong.items():
        assert reasons[event_id].startswith("HEADER_NOT_TEXT: ")
        assert told in reasons[event_id]
    arrived = [record.event_id for record in await asyncio.to_thread(records, kafka, name)]
    assert arrived == [str(one) for one in fine]


def placed(topic: str, position: int, headers: dict[str, Any], payload: Any = b"{}") -> PlainEvent:
    return PlainEvent(position, uuid4(), "k", topic, "Placed", payload, headers)


async def published(publisher: KafkaPublisher, *events: PlainEvent) -> list[Outcome]:
    async with asyncio.timeout(15):
        outcomes = await publisher.publish(events)
    return [outcomes[one.id] for one in events]


async def test_its_key_waits_behind_it_where_a_dead_letter_holds_its_key(
    topic: MakeTopic, publisher: KafkaPublisher
) -> None:
    name = topic(partitions=1)
    publisher.wait_behind_dead(lambda _: True)
    dead, held = await published(publisher, placed(name, 1, {"n": 5}), placed(name, 2, {}))
    assert isinstance(dead, Dead)
    assert isinstance(held, Retry)
    assert held.reason.startswith("HELD")


async def test_headers_are_looked_at_where_sizes_are_not(kafka: str, topic: MakeTopic) -> None:
    """What compression makes of a record only the broker can say."""
    publisher = await KafkaPublisher(kafka, settings={"compression.type": "lz4"}).open()
    name = topic(partitions=1)
    dead, fine = await published(publisher, placed(name, 1, {"n": None}), placed(name, 2, {"n": "5"}))
    assert isinstance(dead, Dead)
    assert fine == DISPATCHED
    await publisher.close(within(5))


async def test_an_event_that_cannot_be_handed_over_costs_no_other(topic: MakeTopic, publisher: KafkaPublisher) -> None:
    name = topic(partitions=1)
    for headers, payload in (({"n": object()}, b"{}"), ({}, object())):
        before, dead, behind = await published(
            publisher, placed(name, 1, {}), placed(name, 2, headers, payload), placed(name, 3, {})
        )
        assert isinstance(dead, Dead)
        assert (before, behind) == (DISPATCHED, DISPATCHED)
