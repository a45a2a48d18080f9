"""Tables that were given to one kind of store: they have the indexes of that kind, and are as they should be."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg
import pytest
from outbox_table import event, write

from quiesce.errors import SettingsError
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.outcome import DISPATCHED
from quiesce.outbox.ports import OutboxStore
from quiesce.outbox.schema_steps import StoreKind
from quiesce.postgres import OutboxLog, OutboxRows, connect, doctor_tables, schema
from quiesce.postgres.driver import Connection
from quiesce.postgres.outbox_control import keep_to_store
from quiesce.postgres.schema_differences import differences

EVERY = {"outbox_event_pkey", "outbox_event_id", "outbox_event_waiting", "outbox_event_xid"}
OTHERS = {"row": "outbox_event_xid", "log": "outbox_event_waiting"}
KINDS: Sequence[StoreKind] = ("row", "log")


async def given_to(db: Connection, kind: StoreKind) -> None:
    async with db.transaction():
        await schema.apply(db)
        await keep_to_store(db, kind, "outbox schema")


async def indexes(db: Connection) -> set[str]:
    rows = await db.fetch("SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'outbox_event'::regclass")
    return {row[0] for row in rows}


async def moved(store: OutboxStore, wanted: int) -> list[UUID]:
    """Opens the store and has it move so many events."""
    found: list[UUID] = []
    await store.open()
    try:
        while len(found) < wanted:
            claim = await store.claim(1000)
            await claim.settle({one.id: DISPATCHED for one in claim.events})
            found += [one.id for one in claim.events]
    finally:
        await store.close(Deadline.never())
    return found


def store_of(kind: StoreKind, dsn: str) -> OutboxStore:
    return OutboxRows(dsn) if kind == "row" else OutboxLog(dsn)


@pytest.mark.parametrize("kind", KINDS)
async def test_they_have_the_indexes_of_that_store_and_nothing_is_amiss(bare: str, kind: StoreKind) -> None:
    async with connect(bare) as db:
        await given_to(db, kind)
        await given_to(db, kind)
        assert await indexes(db) == EVERY - {OTHERS[kind]}
        assert await differences(db) == []
        (check,) = await doctor_tables.tables(db)
        assert check.verdict == "ok", check
        await write(db, *(event(f"key {number % 5}") for number in range(50)))
        ids = [row["id"] for row in await db.fetch("SELECT id FROM outbox_event")]
        assert sorted(await moved(store_of(kind, bare), 50)) == sorted(ids)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_other_kind_of_store_is_refused_and_told_how_to_change_it(bare: str, kind: StoreKind) -> None:
    other: StoreKind = "log" if kind == "row" else "row"
    async with connect(bare) as db:
        await given_to(db, kind)
        with pytest.raises(SettingsError, match=f"quiesce outbox schema apply --for-store {other}"):
            await moved(store_of(other, bare), 1)
        with pytest.raises(SettingsError, match=f"--for-store {other}"):
            await given_to(db, other)
        assert await indexes(db) == EVERY - {OTHERS[kind]}
        await db.execute("UPDATE outbox_control SET store = NULL")
        await given_to(db, other)
        assert await indexes(db) == EVERY - {OTHERS[other]}
        assert await differences(db) == []


async def test_a_table_with_marks_is_not_given_to_log_stores(bare: str) -> None:
    async with connect(bare) as db:
        await schema.apply(db)
        await write(db, event("k"))
        await db.execute("UPDATE outbox_event SET dispatched_at = now()")
        with pytest.raises(SettingsError, match="were marked by row stores"):
            await given_to(db, "log")
        assert await indexes(db) == EVERY


@pytest.mark.parametrize("kind", KINDS)
async def test_the_sql_that_is_shown_does_the_same(bare: str, kind: StoreKind) -> None:
    async with connect(bare) as db:
        for _ in range(2):
            async with db.transaction():
                await db.execute(schema.show(kind))
        assert await indexes(db) == EVERY - {OTHERS[kind]}
        assert await db.fetchval("SELECT store FROM outbox_control") == kind
        assert await differences(db) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_an_index_of_its_own_that_is_missing_is_told(bare: str, kind: StoreKind) -> None:
    other: StoreKind = "log" if kind == "row" else "row"
    async with connect(bare) as db:
        await given_to(db, kind)
        await db.execute(f"DROP INDEX {OTHERS[other]}")
        assert [line for line in await differences(db) if f"index {OTHERS[other]}: missing" in line]
        (check,) = await doctor_tables.tables(db)
        assert (check.verdict, OTHERS[other] in check.found) == ("bad", True)


async def test_marks_find_room_in_the_indexes_of_row_stores(bare: str) -> None:
    """A mark puts a second entry beside the first one. Where pages are full it splits them."""
    size = "SELECT pg_relation_size('outbox_event_id') + pg_relation_size('outbox_event_pkey')"
    async with connect(bare) as db:
        await given_to(db, "row")
        for _ in range(5):
            await write(db, *(event(f"key {number}") for number in range(1000)))
        before = await db.fetchval(size)
        await moved(OutboxRows(bare), 5000)
        assert await db.fetchval(size) < 1.15 * before


async def test_deleted_events_leave_no_row_and_others_stay(bare: str) -> None:
    async with connect(bare) as db:
        await given_to(db, "row")
        await write(db, *(event("k") for _ in range(5)))
        store = await OutboxRows(bare, dispatched="delete").open()
        claim = await store.claim(3)
        await claim.settle({one.id: DISPATCHED for one in claim.events[:2]})
        assert await db.fetchval("SELECT count(*) FROM outbox_event") == 3
        # The id is free again, which is said in the docs; one that waits is refused as ever.
        with pytest.raises(asyncpg.UniqueViolationError):
            await db.execute(
                "INSERT INTO outbox_event (id, aggregate_id, topic, type) VALUES ($1, 'k', 't', 'T')",
                claim.events[2].id,
            )
        await store.close(Deadline.never())


def test_another_way_is_refused() -> None:
    with pytest.raises(SettingsError, match="got dispatched 'archive', takes 'mark' or 'delete'"):
        OutboxRows("postgresql://h/d", dispatched="archive")  # type: ignore[arg-type]
