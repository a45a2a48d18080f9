"""Handlers whose effect is there once: mark and effect in one transaction, in each library, through kill and outage."""

import asyncio
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from once_families import FAMILIES, Family, opened, record

from quiesce import Consumer, Service, running, service
from quiesce.errors import BadEventId, RecordFailed, SchemaMissing, SettingsError, TransactionConflict, Unavailable
from quiesce.inbox import Record
from quiesce.inbox.events import DuplicatesAnswered
from quiesce.inbox.once import Duplicates
from quiesce.inbox.record import TopicPartition
from quiesce.lifecycle.events import Event
from quiesce.postgres import connect, once_batch, open_pool
from quiesce.postgres.driver import Connection
from quiesce.testing.memory_source import MemoryGroup, MemorySource
from quiesce.testing.postgres_address import PostgresAddress
from quiesce.workers import batches

NOWHERE = "postgresql://postgres@127.0.0.1:1/nowhere"
TERMINATE = "SELECT pg_terminate_backend(pg_backend_pid())"


@pytest.fixture(params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shared_database(postgres: PostgresAddress, database_template: str) -> Iterator[str]:
    """One database for all tests of this file: emptying it is cheaper than making one for each."""
    name = f"quiesce_once_{uuid.uuid4().hex[:12]}"
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
async def family(name: str, database: str) -> AsyncIterator[Family]:
    async with opened(name, database) as one:
        yield one


@pytest.fixture
async def look(database: str) -> AsyncIterator[Connection]:
    async with connect(database) as connection:
        yield connection


async def effects(look: Connection) -> list[str]:
    return [row["event_id"] for row in await look.fetch("SELECT event_id FROM effect ORDER BY 1")]


async def marks(look: Connection) -> int:
    return int(await look.fetchval("SELECT count(*) FROM inbox_entry"))


async def test_a_duplicate_is_answered_without_the_handler(family: Family, look: Connection) -> None:
    seen: list[int] = []

    async def handler(record: Record, connection: Any, more: str) -> None:
        assert more == "an argument of the consumer"
        seen.append(record.offset)
        await family.effect(record, connection)

    handle = family.once(family.db, "orders", handler)
    answers = []
    for offset, event_id in enumerate(["e1", "e2", "e1", "e2", "e1"]):
        answers.append(await handle(record(event_id, offset), "an argument of the consumer"))
    assert seen == [0, 1]
    assert answers == [None, None, *[Duplicates(1)] * 3], "for the consumer to count"
    assert await effects(look) == ["e1", "e2"]


async def test_K28_a_handler_that_fails_leaves_neither_mark_nor_effect(family: Family, look: Connection) -> None:
    async def fails(record: Record, connection: Any) -> None:
        await family.effect(record, connection)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await family.once(family.db, "orders", fails)(record("e1"))
    assert (await marks(look), await effects(look)) == (0, [])
    await family.once(family.db, "orders", family.effect)(record("e1", 99))
    assert (await marks(look), await effects(look)) == (1, ["e1"]), "a redriven record runs"


async def test_of_a_batch_those_that_are_new_are_handled_in_their_order(family: Family, look: Connection) -> None:
    batches: list[list[int]] = []

    async def handler(records: Sequence[Record], connection: Any) -> None:
        batches.append([one.offset for one in records])
        for one in records:
            await family.effect(one, connection)

    handle = family.once_batch(family.db, "orders", handler)
    assert await handle([record("c", 0), record("a", 1), record("c", 2)]) == Duplicates(1)
    assert await handle([record("d", 3), record("a", 4), record("b", 5), record("d", 6)]) == Duplicates(2)
    assert await handle([record("a", 7), record("b", 8)]) == Duplicates(2)
    assert await handle([record("x", 9)]) is None
    assert batches == [[0, 1], [3, 5], [9]], "and none for a batch of duplicates"
    assert await effects(look) == ["a", "b", "c", "d", "x"]


async def test_K34_a_record_without_an_id_is_bad_input_that_is_named(family: Family, look: Connection) -> None:
    each, batch = (make(family.db, "orders", family.effect) for make in (family.once, family.once_batch))
    for bad in (record(None), record(""), record(None, id=b"\xff\xfe"), record(None, other=b"e1")):
        for handle, given in ((each, bad), (batch, [record("fine"), bad])):
            with pytest.raises((BadEventId, RecordFailed)) as raised:
                await handle(given)
            cause = raised.value
            if isinstance(cause, RecordFailed):
                assert cause.record is bad, "the consumer need not split the batch to find it"
                assert isinstance(cause.__cause__, BadEventId)
                cause = cause.__cause__
            assert re.search(r"products\[2\]@7.*header 'id'", str(cause))
            assert getattr(cause, "reason_code", None) == "no_event_id"
    assert await marks(look) == 0


async def test_K34_the_id_may_be_somewhere_else(family: Family, look: Connection) -> None:
    handle = family.once(family.db, "orders", family.effect, event_id=lambda one: one.headers[0][1].hex())
    for _ in range(2):
        await handle(record(None, id=b"\xff\xfe"))
    assert await look.fetchval("SELECT event_id FROM inbox_entry") == "fffe"
    assert len(await effects(look)) == 1
    empty = family.once(family.db, "orders", family.effect, event_id=lambda one: "")
    with pytest.raises(BadEventId, match=r"products\[2\]@7: event id: got ''"):
        await empty(record("e1"))


async def test_K32_a_database_that_goes_away_in_the_middle_is_an_outage_and_no_failure(
    family: Family, look: Connection
) -> None:
    async def cut_off(record: Record, connection: Any) -> None:
        await family.effect(record, connection)
        await family.run(connection, TERMINATE)

    with pytest.raises(Unavailable, match="the database went away") as raised:
        await family.once(family.db, "orders", cut_off)(record("e1"))
    assert raised.value.retryable
    await family.once(family.db, "orders", family.effect)(record("e1"))
    assert await effects(look) == ["e1"]


async def test_K32_a_database_that_cannot_be_reached_is_an_outage(name: str) -> None:
    async with opened(name, NOWHERE, timeout=0.3) as family:
        with pytest.raises(Unavailable, match="the database went away"):
            await family.once(family.db, "orders", family.effect)(record("e1"))


async def test_what_the_handler_raises_passes_as_it_is(family: Family, look: Connection) -> None:
    async def slow(record: Record, connection: Any) -> None:
        await family.run(connection, "SET LOCAL statement_timeout = 1")
        await family.run(connection, "SELECT pg_sleep(30)")

    async def other_server(record: Record, connection: Any) -> None:
        raise ConnectionRefusedError("of the mail server")

    with pytest.raises(ConnectionRefusedError):
        await family.once(family.db, "orders", other_server)(record("e1"))
    with pytest.raises(Exception, match="statement timeout") as raised:
        await family.once(family.db, "orders", slow)(record("e1"))
    assert not isinstance(raised.value, Unavailable), "a limit of one statement is no outage"
    assert await marks(look) == 0


async def test_another_transaction_in_the_way_is_no_fault_of_the_record(family: Family, look: Connection) -> None:
    async def conflicting(record: Record, connection: Any) -> None:
        await family.run(connection, "DO $$ BEGIN RAISE EXCEPTION SQLSTATE '40001'; END $$")

    with pytest.raises(TransactionConflict, match="another transaction was in the way"):
        await family.once(family.db, "orders", conflicting)(record("e1"))
    assert await marks(look) == 0


async def test_missing_tables_and_wrong_arguments_are_told(name: str, postgres: PostgresAddress) -> None:
    bare = f"quiesce_bare_{uuid.uuid4().hex[:12]}"
    async with opened(name, postgres.create_database(bare)) as family:
        with pytest.raises(SchemaMissing, match="quiesce inbox schema apply"):
            await family.once(family.db, "orders", family.effect)(record("e1"))
        with pytest.raises(SettingsError, match="inbox: consumer: got ''"):
            family.once(family.db, "", family.effect)
        for make in (family.once, family.once_batch):
            with pytest.raises(SettingsError, match="got str, takes"):
                make("a DSN", "orders", family.effect)
    postgres.drop_database(bare)


@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "SQLAlchemy session"])
@pytest.mark.parametrize("point", ["before", "after"])
async def test_K29_a_process_that_is_killed_beside_the_commit(
    name: str, point: str, database: str, look: Connection
) -> None:
    program = Path(__file__).parent / "once_families.py"
    killed = subprocess.run([sys.executable, program, name, database, point], timeout=60, check=False)
    assert killed.returncode == -9
    assert await effects(look) == ([] if point == "before" else ["e1"])
    async with opened(name, database) as family:
        await family.once(family.db, "orders", family.effect)(record("e1"))
    assert (await marks(look), await effects(look)) == (1, ["e1"])


async def test_decoded_values_stay_beside_their_records_and_duplicates_are_told(
    database: str, look: Connection
) -> None:
    told: list[int] = []
    handled: list[tuple[str, int]] = []

    class Watching:
        def observe(self, event: Event) -> None:
            if isinstance(event, DuplicatesAnswered):
                told.append(event.records)

    async def handler(records: Sequence[Record], connection: Any, values: list[int], more: str) -> None:
        assert more == "an argument of the consumer"
        handled.extend(zip([(one.value or b"").decode() for one in records], values, strict=True))

    group = MemoryGroup("products", 1)
    group.append(0, b"1", b"2")
    group.append(0, b"1", b"3", b"2", b"4", b"3")

    @service("orders", observers=[Watching()])
    async def orders(s: Service) -> None:
        pool = await s.open(open_pool(database, max_size=1))
        once = once_batch(pool, "orders", handler, event_id=lambda one: (one.value or b"").decode())
        source = MemorySource(group)
        s.run(Consumer(source, batches(once), "an argument of the consumer", decode=lambda one: int(one.value or b"")))

    async with running(orders):
        async with asyncio.timeout(30):
            while group.committed != {TopicPartition("products", 0): 7}:
                await asyncio.sleep(0.01)
    assert handled == [("1", 1), ("2", 2), ("3", 3), ("4", 4)]
    assert sum(told) == 3
