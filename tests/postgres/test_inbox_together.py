"""Transactions that mark the same events at the same time: each event is new for one of them, and nobody deadlocks."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

import asyncpg
import pytest

from quiesce.postgres import connect, inbox_entries, inbox_entry, prune_inbox
from quiesce.postgres.driver import Connection
from quiesce.postgres.inbox_retention import PrunedInbox

IDS = [f"event-{number}" for number in range(60)]


@pytest.fixture
async def db(database: str) -> AsyncIterator[Connection]:
    async with connect(database) as connection:
        yield connection


async def test_overlapping_batches_in_any_order_are_new_once_and_wait_for_each_other(database: str) -> None:
    new: Counter[str] = Counter()

    async def handles(seed: int) -> None:
        draw = random.Random(seed)
        async with connect(database) as connection:
            for _ in range(6):
                batch = draw.sample(IDS, 20)
                fails = draw.random() < 0.3
                transaction = connection.transaction()
                await transaction.start()
                found = await inbox_entries(connection, "orders", batch)
                # Others come in between, and wait for the end of this one.
                await asyncio.sleep(0)
                if fails:
                    await transaction.rollback()
                else:
                    await transaction.commit()
                    new.update(found)
        await asyncio.sleep(0)

    await asyncio.gather(*(handles(seed) for seed in range(6)))
    assert set(new.values()) == {1}
    async with connect(database) as connection:
        marked = await connection.fetch("SELECT event_id FROM inbox_entry")
    assert {row["event_id"] for row in marked} == set(new)


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'"


async def test_batches_in_opposite_order_do_not_wait_for_each_other_in_a_circle(database: str, db: Connection) -> None:
    async def handles(batch: list[str]) -> set[str]:
        async with connect(database) as connection, connection.transaction():
            return await inbox_entries(connection, "orders", batch)

    async def waiting(number: int) -> None:
        async with asyncio.timeout(30):
            while await db.fetchval(WAITING) != number:
                await asyncio.sleep(0.01)

    async with connect(database) as between:
        transaction = between.transaction()
        await transaction.start()
        await inbox_entry(between, "orders", "m")
        one = asyncio.create_task(handles(["a", "m", "z"]))
        await waiting(1)
        other = asyncio.create_task(handles(["z", "m", "a"]))
        await waiting(2)
        # Had the other taken z already, each would now want what the other has.
        await transaction.rollback()
        assert [await one, await other] == [{"a", "m", "z"}, set()]


async def test_of_a_batch_with_one_duplicate_the_others_are_new_and_marked(db: Connection) -> None:
    async with db.transaction():
        await inbox_entry(db, "orders", "event-30")
    async with db.transaction():
        assert await inbox_entries(db, "orders", IDS) == set(IDS) - {"event-30"}
        # The transaction goes on: what refused the duplicate stayed inside of the server.
        assert await db.fetchval("SELECT count(*) FROM inbox_entry") == len(IDS)


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
async def test_a_snapshot_from_before_the_mark_is_a_serialization_failure_and_never_a_second_effect(
    database: str, db: Connection, many: bool
) -> None:
    async with connect(database) as late, late.transaction(isolation="repeatable_read"):
        await late.fetchval("SELECT count(*) FROM inbox_entry")
        async with db.transaction():
            await inbox_entry(db, "orders", "event-1")
        with pytest.raises(asyncpg.SerializationError):
            await (inbox_entries(late, "orders", ["event-1"]) if many else inbox_entry(late, "orders", "event-1"))


async def test_a_handler_may_mark_and_a_pruner_delete_with_no_more_rights_than_that(
    database: str, db: Connection
) -> None:
    name = database.rpartition("/")[2]
    marker, pruner = f"marker_{name}", f"pruner_{name}"
    await db.execute(
        f"CREATE ROLE {marker} LOGIN; GRANT SELECT, INSERT ON inbox_entry TO {marker};"
        f"CREATE ROLE {pruner} LOGIN; GRANT SELECT, DELETE ON inbox_entry TO {pruner}"
    )
    try:
        async with connect(database.replace("postgres@", f"{marker}@")) as connection:
            async with connection.transaction():
                assert await inbox_entry(connection, "orders", "a")
                assert await inbox_entries(connection, "orders", ["a", "b"]) == {"b"}
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute("DELETE FROM inbox_entry")
        async with connect(database.replace("postgres@", f"{pruner}@")) as connection:
            assert await prune_inbox(connection, 0.0, "unchecked") == PrunedInbox(2, finished=True)
    finally:
        await db.execute(f"DROP OWNED BY {marker}, {pruner}; DROP ROLE {marker}, {pruner}")
