"""`enqueue` and `enqueue_many` keep one contract in every library, on real PostgreSQL."""

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import asyncpg
import psycopg_pool
import pytest
import sqlalchemy as sa
from doors import NAMES, Door, opened

from quiesce import psycopg as of_psycopg
from quiesce import sqlalchemy as of_sqlalchemy
from quiesce.errors import EnqueueError, EventTooLarge, PayloadNotSerialisable, SchemaMissing
from quiesce.outbox import OutboxEvent
from quiesce.postgres import connect
from quiesce.postgres import enqueue as enqueue_asyncpg
from quiesce.postgres.driver import Connection
from quiesce.testing.postgres_address import PostgresAddress


def event(key: str = "k", payload: object = b"{}", **headers: str) -> OutboxEvent:
    return OutboxEvent("orders", key, "Placed", payload, headers)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shared_database(postgres: PostgresAddress, database_template: str) -> Iterator[str]:
    """One database for all tests of this file: emptying it is cheaper than making one for each."""
    name = f"quiesce_writers_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name, database_template)
    postgres.drop_database(name)


@pytest.fixture
async def database(shared_database: str) -> str:
    async with connect(shared_database) as connection:
        await connection.execute("SET lock_timeout = '5s'; DELETE FROM outbox_event")
    return shared_database


@pytest.fixture
async def door(name: str, database: str) -> AsyncIterator[Door]:
    async with opened(name, database) as one:
        yield one


@pytest.fixture
async def look(database: str) -> AsyncIterator[Connection]:
    """A connection beside the writer's."""
    async with connect(database) as connection:
        yield connection


@pytest.fixture
def bare(postgres: PostgresAddress) -> Iterator[str]:
    """The DSN of a database without any tables."""
    name = f"quiesce_bare_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


async def kept(look: Connection) -> "list[asyncpg.Record]":
    return await look.fetch(
        "SELECT id, topic, aggregate_id, type, payload, headers::text AS headers, jsonb_typeof(headers) AS kind "
        "FROM outbox_event ORDER BY position"
    )


async def test_what_is_committed_is_there_as_it_was_given(door: Door, look: Connection) -> None:
    async with door.transaction():
        written = await door.enqueue(event("Łódź:$1 %s", {"total": 3, "note": "ü"}, colour="b:lue", empty=""))
        assert await kept(look) == [], "not before the commit"
    (row,) = await kept(look)
    assert row["id"] == written
    assert (row["topic"], row["aggregate_id"], row["type"]) == ("orders", "Łódź:$1 %s", "Placed")
    assert row["payload"] == '{"total":3,"note":"ü"}'.encode()
    assert row["kind"] == "object"
    assert json.loads(row["headers"]) == {"colour": "b:lue", "empty": ""}


async def test_a_rollback_takes_the_event_along(door: Door, look: Connection) -> None:
    async def fails() -> None:
        async with door.transaction():
            await door.enqueue(event())
            await door.enqueue_many([event(), event()])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    assert await kept(look) == []


async def test_a_savepoint_takes_its_events_along(door: Door, look: Connection) -> None:
    async def fails() -> None:
        async with door.savepoint():
            await door.enqueue_many([event("gone")])
            raise ZeroDivisionError

    async with door.transaction():
        with pytest.raises(ZeroDivisionError):
            await fails()
        await door.enqueue(event("stays"))
    assert [row["aggregate_id"] for row in await kept(look)] == ["stays"]


async def test_many_come_in_their_order_with_every_kind_of_payload(door: Door, look: Connection) -> None:
    payloads: list[object] = [None, b"", b"\x00\xff\\", "text", {"a": [1]}, None]
    events = [event(f"k{number}", payload, n=str(number)) for number, payload in enumerate(payloads)]
    async with door.transaction():
        ids = await door.enqueue_many(events)
    rows = await kept(look)
    assert [row["id"] for row in rows] == ids == [one.id for one in events]
    assert [row["payload"] for row in rows] == [None, b"", b"\x00\xff\\", b"text", b'{"a":[1]}', None]
    assert [json.loads(row["headers"]) for row in rows] == [{"n": str(number)} for number in range(len(events))]


async def test_many_tombstones_and_a_thousand(door: Door, look: Connection) -> None:
    async with door.transaction():
        await door.enqueue_many([event("gone", None), event("gone too", None)])
        ids = await door.enqueue_many([event(f"k{number}") for number in range(1000)])
    rows = await kept(look)
    assert [row["payload"] for row in rows[:2]] == [None, None]
    assert [row["id"] for row in rows[2:]] == ids


async def test_none_of_many_is_no_event_and_no_error(door: Door, look: Connection) -> None:
    async with door.transaction():
        assert await door.enqueue_many([]) == []
    assert await kept(look) == []


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (event("k", object()), PayloadNotSerialisable),
        (event("k", b"x" * 2000), EventTooLarge),
        (event("", b""), EnqueueError),
        (event("k", "half \ud800"), PayloadNotSerialisable),
        (event("half \ud800"), EnqueueError),
        (event("k", n="half \ud800"), EnqueueError),
        (replace(event(), topic="half \ud800"), EnqueueError),
        (replace(event(), topic="no topic!"), EnqueueError),
        (replace(event(), id=5), EnqueueError),  # type: ignore[arg-type]
        (replace(event(), headers=None), EnqueueError),  # type: ignore[arg-type]
    ],
    ids=["not JSON", "too large", "no key", "half", "half key", "half header", "half topic", "topic", "id", "headers"],
)
async def test_a_refused_event_leaves_the_transaction_usable(
    door: Door, look: Connection, refused: OutboxEvent, error: type[EnqueueError]
) -> None:
    async with door.transaction():
        with pytest.raises(error):
            await door.enqueue(refused, max_event_bytes=1000)
        with pytest.raises(error):
            await door.enqueue_many([event(), refused], max_event_bytes=1000)
        own = await door.enqueue(event())
    assert [row["id"] for row in await kept(look)] == [own]


async def test_outside_a_transaction_it_is_refused(name: str, database: str, look: Connection) -> None:
    async with opened(name, database, commits_by_itself=True) as door:
        for attempt in (door.enqueue(event()), door.enqueue_many([event()]), door.enqueue_many([])):
            with pytest.raises(EnqueueError, match="open transaction"):
                await attempt
    assert await kept(look) == []


async def test_a_pool_or_an_engine_is_told_what_to_take() -> None:
    with pytest.raises(EnqueueError, match=r"got Pool, takes a connection of asyncpg: write `async with pool.acquire"):
        await enqueue_asyncpg(asyncpg.create_pool("postgresql://nobody@localhost:1/none"), event())  # type: ignore[arg-type]
    pool = psycopg_pool.ConnectionPool("postgresql://nobody@localhost:1/none", open=False)
    with pytest.raises(EnqueueError, match="got ConnectionPool, takes a connection of psycopg"):
        of_psycopg.enqueue(pool, event())  # type: ignore[call-overload]
    engine = sa.create_engine("postgresql+psycopg://nobody@localhost:1/none")
    with pytest.raises(EnqueueError, match="got Engine, takes a session or a connection of SQLAlchemy"):
        of_sqlalchemy.enqueue(engine, event())  # type: ignore[call-overload]


async def test_the_same_event_twice_is_the_librarys_own_error(door: Door, look: Connection) -> None:
    one = event()
    async with door.transaction():
        await door.enqueue(one)
    for attempt in (lambda: door.enqueue(one), lambda: door.enqueue_many([event(), one])):
        with pytest.raises(door.duplicate):
            async with door.transaction():
                await attempt()
    assert len(await kept(look)) == 1


async def test_a_missing_table_names_the_command(name: str, bare: str) -> None:
    async with opened(name, bare) as door:
        for attempt in (lambda: door.enqueue(event()), lambda: door.enqueue_many([event()])):
            with pytest.raises(SchemaMissing, match="quiesce outbox schema apply"):
                async with door.transaction():
                    await attempt()
