"""`inbox_entry` and `inbox_entries` keep one contract in every library, on real PostgreSQL."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from doors import NAMES, Door, opened

from quiesce.errors import BadEventId, InboxRefused, SchemaMissing, SettingsError
from quiesce.postgres import connect, inbox_entry
from quiesce.postgres.driver import Connection
from quiesce.testing.postgres_address import PostgresAddress

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'"


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shared_database(postgres: PostgresAddress, database_template: str) -> Iterator[str]:
    """One database for all tests of this file: emptying it is cheaper than making one for each."""
    name = f"quiesce_inbox_{uuid.uuid4().hex[:12]}"
    dsn = postgres.create_database(name, database_template)
    postgres.execute("CREATE TABLE effect (event_id text)", name)
    yield dsn
    postgres.drop_database(name)


@pytest.fixture
async def database(shared_database: str) -> str:
    async with connect(shared_database) as connection:
        await connection.execute("SET lock_timeout = '5s'; DELETE FROM inbox_entry; DELETE FROM effect")
    return shared_database


@pytest.fixture
async def door(name: str, database: str) -> AsyncIterator[Door]:
    async with opened(name, database) as one:
        yield one


@pytest.fixture
async def look(database: str) -> AsyncIterator[Connection]:
    """A connection beside the handler's."""
    async with connect(database) as connection:
        yield connection


@pytest.fixture
def bare(postgres: PostgresAddress) -> Iterator[str]:
    """The DSN of a database without any tables."""
    name = f"quiesce_bare_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


async def marked(look: Connection) -> list[tuple[str, str]]:
    rows = await look.fetch("SELECT consumer, event_id FROM inbox_entry ORDER BY 1, 2")
    return [(row["consumer"], row["event_id"]) for row in rows]


async def handle(door: Door, event_id: str, *, fails: bool = False) -> bool:
    """Mark and effect in one transaction, as a handler has them. Returns whether the event was new."""
    async with door.transaction():
        new = await door.inbox_entry("orders", event_id)
        if new:
            await door.run(f"INSERT INTO effect VALUES ('{event_id}')")
        if fails:
            raise ZeroDivisionError
    return new


async def test_the_first_time_it_is_new_and_then_a_duplicate(door: Door, look: Connection) -> None:
    assert [await handle(door, "e1"), await handle(door, "e1"), await handle(door, "e2")] == [True, False, True]
    assert [row["event_id"] for row in await look.fetch("SELECT * FROM effect ORDER BY 1")] == ["e1", "e2"]
    assert await marked(look) == [("orders", "e1"), ("orders", "e2")]


async def test_twice_in_one_transaction_is_a_duplicate_too(door: Door) -> None:
    async with door.transaction():
        assert await door.inbox_entry("orders", "e1") is True
        assert await door.inbox_entry("orders", "e1") is False
        assert await door.inbox_entries("orders", ["e1", "e2"]) == {"e2"}


async def test_K28_a_handler_that_fails_leaves_no_mark(door: Door, look: Connection) -> None:
    with pytest.raises(ZeroDivisionError):
        await handle(door, "e1", fails=True)
    assert await marked(look) == []
    assert await handle(door, "e1") is True, "a redriven record runs"


async def test_K28_a_savepoint_takes_its_mark_along(door: Door, look: Connection) -> None:
    async def fails() -> None:
        async with door.savepoint():
            assert await door.inbox_entries("orders", ["gone", "gone too"]) == {"gone", "gone too"}
            raise ZeroDivisionError

    async with door.transaction():
        with pytest.raises(ZeroDivisionError):
            await fails()
        await door.inbox_entry("orders", "stays")
    assert await marked(look) == [("orders", "stays")]


async def test_K29_mark_and_effect_are_one_commit(door: Door, look: Connection) -> None:
    async with door.transaction():
        await door.inbox_entry("orders", "e1")
        await door.run("INSERT INTO effect VALUES ('e1')")
        assert await marked(look) == [], "not before the commit"
        assert await look.fetchval("SELECT count(*) FROM effect") == 0
    ids = await look.fetch("SELECT i.xmin::text = e.xmin::text AS one FROM inbox_entry AS i, effect AS e")
    assert [row["one"] for row in ids] == [True]


async def test_K33_two_consumers_each_handle_it_once(door: Door, look: Connection) -> None:
    async with door.transaction():
        assert await door.inbox_entry("orders", "e1") is True
        assert await door.inbox_entry("mails", "e1") is True
    async with door.transaction():
        assert await door.inbox_entry("orders", "e1") is False
        assert await door.inbox_entries("mails", ["e1"]) == set()
    assert await marked(look) == [("mails", "e1"), ("orders", "e1")]


BAD = [None, "", "  \t", "a\0b", "a\x1fb", "x" * 513, "ü" * 257, "\ud800"]


async def test_K34_an_id_that_is_none_is_refused_and_the_transaction_goes_on(door: Door, look: Connection) -> None:
    async with door.transaction():
        for bad in BAD:
            with pytest.raises(BadEventId, match="event id: got"):
                await door.inbox_entry("orders", bad)
            with pytest.raises(BadEventId, match="event id: got"):
                await door.inbox_entries("orders", ["fine", bad])  # type: ignore[list-item]  # as if from a header
        assert await door.inbox_entry("orders", "e1") is True
    assert await marked(look) == [("orders", "e1")]


async def test_K34_ids_of_any_form_are_kept_as_they_are(door: Door, look: Connection) -> None:
    one = uuid.uuid4()
    ids = ["Ünï:$1 %s :p1", " spaced ", "x" * 512, "{a,b}", 'NULL"\\', str(one)]
    async with door.transaction():
        assert await door.inbox_entries("orders", ids) == set(ids)
        assert await door.inbox_entry("orders", one) is False, "a UUID is its text"
        assert await door.inbox_entry("orders", "SPACED") is True
    assert sorted(event_id for _, event_id in await marked(look)) == sorted([*ids, "SPACED"])


async def test_a_consumer_without_a_name_is_refused(door: Door) -> None:
    async with door.transaction():
        for consumer in ("", " ", "a\0", "x" * 201):
            with pytest.raises(SettingsError, match="inbox: consumer: got"):
                await door.inbox_entry(consumer, "e1")


async def test_many_at_once_are_new_known_or_twice(door: Door, look: Connection) -> None:
    async with door.transaction():
        assert await door.inbox_entries("orders", ["b", "a", "b"]) == {"a", "b"}
    async with door.transaction():
        assert await door.inbox_entries("orders", ["c", "a", "c", "d"]) == {"c", "d"}
        assert await door.inbox_entries("orders", ["a", "b"]) == set(), "all of them known"
        assert await door.inbox_entries("orders", []) == set()
    thousand = [f"n{number}" for number in range(1000)]
    async with door.transaction():
        assert await door.inbox_entries("orders", thousand) == set(thousand)
    assert len(await marked(look)) == 1004


async def test_outside_a_transaction_it_is_refused(name: str, database: str, look: Connection) -> None:
    async with opened(name, database, commits_by_itself=True) as door:
        for attempt in (
            lambda: door.inbox_entry("orders", "e1"),
            lambda: door.inbox_entries("orders", ["e1"]),
            lambda: door.inbox_entries("orders", []),
        ):
            with pytest.raises(InboxRefused, match="open transaction"):
                await attempt()
    assert await marked(look) == []


async def test_a_missing_table_names_the_command(name: str, bare: str) -> None:
    async with opened(name, bare) as door:
        for attempt in (lambda: door.inbox_entry("orders", "e1"), lambda: door.inbox_entries("orders", ["e1"])):
            with pytest.raises(SchemaMissing, match="quiesce inbox schema apply"):
                async with door.transaction():
                    await attempt()


@pytest.mark.parametrize("commits", [True, False], ids=["first commits", "first rolls back"])
async def test_two_at_once_the_second_waits_for_the_end_of_the_first(
    name: str, database: str, look: Connection, commits: bool
) -> None:
    async def second() -> bool:
        async with opened(name, database) as door:
            return await handle(door, "e1")

    async with connect(database) as first:
        transaction = first.transaction()
        await transaction.start()
        assert await inbox_entry(first, "orders", "e1")
        # In a thread with a loop of its own: half of the libraries block.
        waiting = asyncio.create_task(asyncio.to_thread(asyncio.run, second()))
        async with asyncio.timeout(30):
            while not await look.fetchval(WAITING):
                assert not waiting.done()
                await asyncio.sleep(0.01)
        await (transaction.commit() if commits else transaction.rollback())
        async with asyncio.timeout(30):
            assert await waiting is not commits
    assert await marked(look) == [("orders", "e1")]
    assert await look.fetchval("SELECT count(*) FROM effect") == (0 if commits else 1)
