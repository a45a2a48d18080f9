"""The row of a lane is found by the newest of its versions: what cannot be cleaned up costs nothing."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from outbox_databases import OpenLog
from outbox_table import event, until, write

from quiesce.errors import ClaimLost, SchemaMissing, SettingsError
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.outcome import DISPATCHED, Outcome, Retry
from quiesce.outbox.ports import Claim
from quiesce.postgres import OutboxLog, connect, rebase, schema
from quiesce.postgres.doctor import examine
from quiesce.postgres.driver import Connection
from quiesce.postgres.lane_rows import newest
from quiesce.postgres.log_connections import _PLANNER
from quiesce.postgres.log_statements import MOVE, array
from quiesce.postgres.outbox_status import status
from quiesce.postgres.retention import prune
from quiesce.testing.postgres import LocalPostgres

LANES = 16
VERSIONS = 2000
"""Of each row."""
KEYS = [f"key {n}" for n in range(40)]
"""Of all lanes."""


@asynccontextmanager
async def forgotten(dsn: str) -> AsyncIterator[None]:
    """A transaction that has a snapshot and does nothing, from a moment on when all was cleaned up."""
    async with connect(dsn) as other:
        # What autovacuum looks at would be counted, too.
        await other.execute("ALTER TABLE outbox_lane SET (autovacuum_enabled = false)")
        await other.execute("VACUUM FULL outbox_lane")
        async with other.transaction(isolation="repeatable_read", readonly=True):
            await other.fetchval("SELECT 1")
            yield
        await other.execute("ALTER TABLE outbox_lane RESET (autovacuum_enabled)")


async def leave_versions(db: Connection) -> None:
    await db.execute(
        f"DO $$ BEGIN FOR n IN 1..{VERSIONS} LOOP "
        "UPDATE outbox_lane SET dispatched = dispatched, version = version + (n % 64 = 0)::int; END LOOP; END $$"
    )


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


async def dispatched(db: Connection) -> int:
    return int(await db.fetchval("SELECT sum(dispatched) FROM outbox_lane"))


def seen_of(plan: str) -> tuple[int, float]:
    """Pages that a statement looked at, some of them more than once, and the rows that it gave."""
    top = json.loads(plan)[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"]), top["Actual Rows"]


async def moved(db: Connection, number: int) -> int:
    """Pages that a move of all lanes looks at; it raises the versions once in a while."""
    every = f"generate_series(0, 15) AS n (number) CROSS JOIN LATERAL {newest('n.number')} AS present"
    rows = await db.fetch(f"SELECT present.lane, epoch, version FROM {every}")
    given: list[list[Any]] = [
        [row["lane"] for row in rows],
        [row["epoch"] for row in rows],
        ["1:1:"] * LANES,
        [0] * LANES,
        [None] * LANES,
        [None] * LANES,
        [0] * LANES,
        [None] * LANES,
        [row["version"] for row in rows],
        [int(number % 50 == 0)] * LANES,
    ]
    arguments = ", ".join(f"'{array(values)}'" for values in given)
    await db.execute(f"PREPARE moving ({', '.join(['text'] * len(given))}) AS {MOVE}")
    try:
        pages, found = seen_of(
            await db.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE moving ({arguments})")
        )
    finally:
        await db.execute("DEALLOCATE moving")
    assert found == LANES
    return pages


async def test_a_move_costs_the_same_behind_thousands_of_former_versions(outbox: str, db: Connection) -> None:
    for name, value in _PLANNER.items():
        await db.execute(f"SET {name} = {value}")
    async with forgotten(outbox):
        before = max([await moved(db, number) for number in range(200)])
        await leave_versions(db)
        after = max([await moved(db, number) for number in range(200)])
        # As VACUUM may find it while lanes are moved.
        await db.execute("BEGIN; UPDATE pg_class SET reltuples = 1, relpages = 900 WHERE oid = 'outbox_lane'::regclass")
        believed = max([await moved(db, number) for number in range(20)])
        await db.execute("ROLLBACK")
        walk, _ = seen_of(
            await db.fetchval("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT epoch FROM outbox_lane WHERE lane = 3")
        )
    assert after <= 1.5 * before
    assert believed <= 1.5 * before, "whatever the planner believes"
    assert LANES * walk > 5 * after, "nothing was to be spared here"


@dataclass
class Seen:
    pages: int
    """Of the table of lanes, some of them more than once."""


_SEEN = "SELECT heap_blks_read + heap_blks_hit FROM pg_statio_user_tables WHERE relname = 'outbox_lane'"
_SESSIONS = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
"""


@asynccontextmanager
async def counted(db: Connection, store: OutboxLog) -> AsyncIterator[Seen]:
    """What a store and this connection do from its opening on. Sessions tell what they did when they end."""

    async def alone() -> bool:
        return int(await db.fetchval(_SESSIONS)) == sessions

    async def now() -> int:
        await db.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
        return int(await db.fetchval(_SEEN))

    sessions = int(await db.fetchval(_SESSIONS))
    before = await now()
    seen = Seen(0)
    await store.open()
    yield seen
    await store.close(Deadline(time.monotonic() + 5.0))
    await until(alone)
    seen.pages = await now() - before


async def settle_all(store: OutboxLog, db: Connection, times: int) -> None:
    """One event of each claim is set aside."""
    for turn in range(times):
        claim = await claimed(store, db, f"in trouble {turn} {uuid4()}", *KEYS)
        await claim.settle(
            {one.id: DISPATCHED if one.aggregate_id in KEYS else Retry("no topic", 600.0) for one in claim.events}
        )


async def test_neither_a_new_owner_nor_who_looks_walks_over_former_versions(db: Connection, outbox: str) -> None:
    async with forgotten(outbox):
        await leave_versions(db)
        async with counted(db, store := OutboxLog(outbox)) as seen:
            await settle_all(store, db, 1)
            assert (await status(db)).dispatched.events == len(KEYS)
            assert (await prune(db, 0.0)).events == len(KEYS)
        # Of thousands of entries of the index, each of which leads to a page.
        assert seen.pages < 1000


@pytest.mark.parametrize("how", ["UPDATE outbox_lane SET moved_at = now()", "VACUUM FULL outbox_lane"])
async def test_rows_that_stand_elsewhere_are_found_all_the_same(db: Connection, open_log: OpenLog, how: str) -> None:
    store = await open_log()
    for turn in range(1, 4):
        claim = await claimed(store, db, *KEYS)
        await db.execute(how)
        settled = await claim.settle(acked(claim))
        assert settled.dispatched == len(KEYS)
        assert await dispatched(db) == turn * len(KEYS)
    assert not (await store.claim(100)).events


async def test_of_lanes_some_of_which_moved_each_is_recorded_once(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    claim = await claimed(store, db, *KEYS)
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
    claim = await claimed(store, db, *KEYS)
    await db.execute("UPDATE outbox_lane SET epoch = epoch + 1 WHERE lane < 8")
    with pytest.raises(ClaimLost, match="8 of 16 lanes"):
        await claim.settle(acked(claim))
    rows = await db.fetch("SELECT last, dispatched FROM outbox_lane ORDER BY lane")
    assert {tuple(row) for row in rows[:8]} == {(0, 0)}
    assert all(row["last"] and row["dispatched"] for row in rows[8:])


async def test_of_writers_one_behind_the_other_none_takes_a_lane_away(
    db: Connection, outbox: str, open_log: OpenLog
) -> None:
    store = await open_log()
    claim = await claimed(store, db, "k")
    write_it = "UPDATE outbox_lane SET owner = owner WHERE lane = outbox_lane('k')"

    async def waiting(number: int) -> None:
        async def are() -> bool:
            return int(await db.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")) == number

        await until(are)

    async with connect(outbox) as first, connect(outbox) as second:
        of_first, of_second = first.transaction(), second.transaction()
        await of_first.start()
        await first.execute(write_it)
        settling = asyncio.create_task(claim.settle(acked(claim)))
        await waiting(1)
        await of_second.start()
        after = asyncio.create_task(second.execute(write_it))
        await waiting(2)
        await of_first.commit()
        await after
        await of_second.commit()
        async with asyncio.timeout(5.0):
            assert (await settling).dispatched == 1
    assert await dispatched(db) == 1
    assert {row["epoch"] for row in await db.fetch("SELECT epoch FROM outbox_lane")} == {1}


async def test_lanes_that_somebody_is_writing_are_taken_when_that_is_over(db: Connection, outbox: str) -> None:
    store = OutboxLog(outbox)
    writing = db.transaction()
    await writing.start()
    await db.execute("UPDATE outbox_lane SET dispatched = 100 WHERE lane < 8")

    async def waits() -> bool:
        async with connect(outbox) as other:
            return bool(await other.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))

    await store.open()
    try:
        claiming = asyncio.create_task(store.claim(100))
        await until(waits)
        await writing.commit()
        async with asyncio.timeout(5.0):
            await claiming
        claim = await claimed(store, db, *KEYS)
        await claim.settle(acked(claim))
        assert await dispatched(db) == 8 * 100 + len(KEYS)
    finally:
        await store.close(Deadline(time.monotonic() + 2.0))


async def test_a_lane_has_one_row_and_the_steps_may_be_run_twice(db: Connection, outbox: str) -> None:
    await db.execute("UPDATE outbox_lane SET last = 7, moved_at = now(), version = 5")
    for insert in (
        "INSERT INTO outbox_lane (lane, last) VALUES (3, 9)",
        "UPDATE outbox_lane SET lane = 4 WHERE lane = 3",
    ):
        with pytest.raises(asyncpg.UniqueViolationError, match="has its row"):
            await db.execute(insert)
    async with db.transaction():
        await db.execute(schema.show())
        held = await db.fetchval(
            "SELECT count(*) FROM pg_locks WHERE relation = 'outbox_lane'::regclass AND mode LIKE $1", "%Excl%"
        )
    assert held == 1, "a second run locks no more than an insert does"
    assert {row["last"] for row in await db.fetch("SELECT last FROM outbox_lane")} == {7}
    assert await db.fetchval("SELECT count(*) FROM outbox_lane") == LANES


async def test_rows_that_were_restored_over_others_are_told(db: Connection, outbox: str) -> None:
    # The rows are counted where the table is small.
    await db.execute("VACUUM FULL outbox_lane")
    try:
        await db.execute(
            "UPDATE outbox_control SET store = 'log'; ALTER TABLE outbox_lane DISABLE TRIGGER outbox_lane_once; "
            "INSERT INTO outbox_lane (lane, version, last) VALUES (3, 99, 9)"
        )
        with pytest.raises(SchemaMissing, match="17 rows, takes 16"):
            await OutboxLog(outbox).open()
        (told,) = [check for check in await examine(db) if check.name == "lanes"]
        assert told.verdict == "bad"
        assert "17 rows" in told.found
        with pytest.raises(SettingsError, match="17 rows"):
            await rebase.look(db)
    finally:
        await db.execute(
            "DELETE FROM outbox_lane WHERE version = 99; ALTER TABLE outbox_lane ENABLE ALWAYS TRIGGER outbox_lane_once"
        )


async def test_cursors_and_events_are_replicated_to_a_second_server() -> None:
    settings = {"wal_level": "logical"}
    with LocalPostgres(settings=settings) as first, LocalPostgres(settings=settings) as second:
        for server in (first, second):
            server.execute(schema.show())
        second.execute("TRUNCATE outbox_lane; TRUNCATE outbox_control")
        first.execute("CREATE PUBLICATION everything FOR TABLE outbox_lane, outbox_event, outbox_control")
        second.execute(f"CREATE SUBSCRIPTION copy CONNECTION '{first.dsn()}' PUBLICATION everything")
        async with connect(first.dsn()) as db, connect(second.dsn()) as copy:
            store = await OutboxLog(first.dsn()).open()
            for _ in range(70):
                claim = await claimed(store, db, "a", "b")
                await claim.settle(acked(claim))
            want = await db.fetch("SELECT * FROM outbox_lane ORDER BY lane")

            async def same() -> bool:
                return list(await copy.fetch("SELECT * FROM outbox_lane ORDER BY lane")) == list(want)

            await until(same, within=15.0)
            assert await copy.fetchval("SELECT count(*) FROM outbox_event") == 140
            await store.close(Deadline(time.monotonic() + 2.0))
        second.execute("DROP SUBSCRIPTION copy")
