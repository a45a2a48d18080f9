"""Where the row of a lane stands is remembered: what a settle costs stays the same, whatever cannot be cleaned up."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from outbox_databases import OpenLog
from outbox_table import event, until, write

from quiesce.errors import ClaimLost
from quiesce.outbox.outcome import DISPATCHED, Outcome, Retry
from quiesce.outbox.ports import Claim
from quiesce.postgres import OutboxLog, connect
from quiesce.postgres.driver import Connection
from quiesce.postgres.log_connections import _PLANNER
from quiesce.postgres.log_statements import AT_PLACE, BY_LANE, Settle, array

SETTLES = 400


@asynccontextmanager
async def forgotten(dsn: str) -> AsyncIterator[None]:
    """A transaction that has a snapshot and does nothing."""
    async with connect(dsn) as other, other.transaction(isolation="repeatable_read", readonly=True):
        await other.fetchval("SELECT 1")
        yield


def acked(claim: Claim) -> dict[UUID, Outcome]:
    return {one.id: DISPATCHED for one in claim.events}


async def claimed(store: OutboxLog, db: Connection, *keys: str) -> Claim:
    await write(db, *map(event, keys))
    found: list[Claim] = []

    async def has() -> bool:
        found.append(await store.claim(100))
        return len(found[-1].events) == len(keys)

    await until(has)
    return found[-1]


async def by_lane(db: Connection) -> int:
    """How often a lane was looked for by its number."""
    await db.execute("SELECT pg_stat_clear_snapshot()")
    return int(await db.fetchval("SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'outbox_lane_number'"))


async def dispatched(db: Connection) -> int:
    return int(await db.fetchval("SELECT sum(dispatched) FROM outbox_lane"))


async def pages(db: Connection, settle: Settle, lanes: list[int]) -> int:
    """Pages that a move of these lanes looks at, some of them more than once."""
    rows = await db.fetch("SELECT epoch, ctid::text AS place FROM outbox_lane ORDER BY lane")
    count = len(lanes)
    given: list[list[object]] = [
        list(lanes),
        [rows[lane]["epoch"] for lane in lanes],
        ["1:1:"] * count,
        [0] * count,
        [None] * count,
        [None] * count,
        [0] * count,
        [None] * count,
        [rows[lane]["place"] for lane in lanes],
    ]
    arguments = ", ".join(f"'{array(values)}'" for values in given)
    await db.execute(f"PREPARE moving ({', '.join(['text'] * len(given))}) AS {settle.moves}")
    try:
        plan = await db.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE moving ({arguments})")
    finally:
        await db.execute("DEALLOCATE moving")
    top = json.loads(plan)[0]["Plan"]
    assert top["Actual Rows"] == count
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


async def test_a_move_costs_the_same_behind_thousands_of_former_versions(outbox: str, db: Connection) -> None:
    for name, value in _PLANNER.items():
        await db.execute(f"SET {name} = {value}")
    lanes = list(range(16))
    before = max([await pages(db, AT_PLACE, lanes) for _ in range(50)])
    async with forgotten(outbox):
        for _ in range(SETTLES):
            await db.execute("UPDATE outbox_lane SET dispatched = dispatched + 1")
        # A plan is made once; what it does is counted here.
        after = max([await pages(db, AT_PLACE, lanes) for _ in range(50)])
        slow = await pages(db, BY_LANE, lanes)
    assert after <= 1.5 * before
    assert slow > 5 * after, "nothing to be spared here: the test shows nothing"


async def test_a_store_finds_its_lanes_where_they_stood(db: Connection, outbox: str, open_log: OpenLog) -> None:
    store = await open_log()
    async with forgotten(outbox):
        claim = await claimed(store, db, *(f"key {n}" for n in range(40)))
        await claim.settle(acked(claim))
        looked = await by_lane(db)
        for turn in range(20):
            claim = await claimed(store, db, f"in trouble {turn}", *(f"key {n}" for n in range(40)))
            # One event of each claim is set aside.
            await claim.settle(
                {
                    one.id: DISPATCHED if one.aggregate_id.startswith("key") else Retry("no topic", 600.0)
                    for one in claim.events
                }
            )
    assert await dispatched(db) > 20 * 20
    assert await by_lane(db) == looked


@pytest.mark.parametrize("how", ["UPDATE outbox_lane SET moved_at = now()", "VACUUM FULL outbox_lane"])
async def test_rows_that_stand_elsewhere_are_found_all_the_same(db: Connection, open_log: OpenLog, how: str) -> None:
    store = await open_log()
    keys = [f"key {n}" for n in range(40)]
    for turn in range(1, 4):
        claim = await claimed(store, db, *keys)
        await db.execute(how)
        settled = await claim.settle(acked(claim))
        assert settled.dispatched == len(keys)
        assert await dispatched(db) == turn * len(keys)
    assert not (await store.claim(100)).events


async def test_of_lanes_some_of_which_moved_each_is_recorded_once(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    keys = [f"key {n}" for n in range(40)]
    claim = await claimed(store, db, *keys)
    await db.execute("UPDATE outbox_lane SET moved_at = now() WHERE lane % 2 = 0")
    kept: dict[UUID, Outcome] = {one.id: Retry("no topic", 600.0) for one in claim.events}
    await claim.settle(kept)
    rows = await db.fetch("SELECT event_id, attempts FROM outbox_parked")
    assert sorted(row["event_id"] for row in rows) == sorted(kept)
    assert {row["attempts"] for row in rows} == {1}


async def test_an_owner_that_was_replaced_records_nothing_wherever_its_row_stands(
    db: Connection, open_log: OpenLog
) -> None:
    store = await open_log()
    claim = await claimed(store, db, *(f"key {n}" for n in range(40)))
    await db.execute("UPDATE outbox_lane SET epoch = epoch + 1 WHERE lane < 8")
    with pytest.raises(ClaimLost, match="8 of 16 lanes"):
        await claim.settle(acked(claim))
    rows = await db.fetch("SELECT last, dispatched FROM outbox_lane ORDER BY lane")
    assert {tuple(row) for row in rows[:8]} == {(0, 0)}
    assert all(row["last"] and row["dispatched"] for row in rows[8:])


async def test_tables_that_are_published_can_be_settled(db: Connection, open_log: OpenLog) -> None:
    await db.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    try:
        store = await open_log()
        claim = await claimed(store, db, "a", "b")
        await claim.settle(acked(claim))
        assert await dispatched(db) == 2
    finally:
        await db.execute("DROP PUBLICATION everything")
