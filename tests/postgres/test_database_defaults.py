"""`ALTER DATABASE ... SET` is made for applications: a relay works all the same."""

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from outbox_databases import OpenLog, OpenStore
from outbox_table import event, until, write
from pgbouncer import OpenPgBouncer

from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.outbox.ports import OutboxStore
from quiesce.postgres import connect, doctor, log_watch
from quiesce.postgres.driver import Connection

HARD = {
    "default_transaction_isolation": "'serializable'",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "statement_timeout": "'1s'",
    "lock_timeout": "'1ms'",
    "idle_in_transaction_session_timeout": "'50ms'",
    "idle_session_timeout": "'50ms'",
    "enable_indexscan": "off",
    "enable_nestloop": "off",
    "plan_cache_mode": "'force_custom_plan'",
    "array_nulls": "off",
    "row_security": "off",
    "search_path": "pg_catalog, public",
    "standard_conforming_strings": "off",
    "bytea_output": "'escape'",
    "datestyle": "'SQL, DMY'",
    "intervalstyle": "'sql_standard'",
    "synchronous_commit": "off",
}


async def given(outbox: str, settings: dict[str, str]) -> None:
    async with connect(outbox) as db:
        await db.execute("SET default_transaction_read_only = off")
        name = await db.fetchval("SELECT quote_ident(current_database())")
        for setting, value in settings.items():
            await db.execute(f"ALTER DATABASE {name} SET {setting} = {value}")


async def taken_back(outbox: str) -> None:
    async with connect(outbox) as db:
        await db.execute("SET default_transaction_read_only = off")
        name = await db.fetchval("SELECT quote_ident(current_database())")
        await db.execute(f"ALTER DATABASE {name} RESET ALL")


@pytest.fixture
async def hard(outbox: str, db: Connection) -> AsyncIterator[Connection]:
    """The database has them all, one connection is from before."""
    settings = dict(HARD)
    if db.get_server_version().major >= 17:
        settings["transaction_timeout"] = "'900ms'"
    await given(outbox, settings)
    yield db
    await taken_back(outbox)


async def is_watching(db: Connection) -> bool:
    return bool(
        await db.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' "
            "AND query LIKE '%outbox_watch(%' AND pid <> pg_backend_pid()"
        )
    )


async def goes_through(store: OutboxStore, db: Connection) -> None:
    retried, dead, fine = event("a"), event("b"), event("c")
    await write(db, retried, dead, fine)
    claim = await store.claim(10)
    assert {one.id for one in claim.events} == {retried.id, dead.id, fine.id}
    outcomes: dict[UUID, Outcome] = {retried.id: Retry("no leader", 0.0), dead.id: Dead("no"), fine.id: DISPATCHED}
    await claim.settle(outcomes)
    end = time.monotonic() + 10.0
    while not (claim := await store.claim(10)).events:
        assert time.monotonic() < end, "the retry never came"
    assert [one.id for one in claim.events] == [retried.id]
    await claim.settle({retried.id: DISPATCHED})
    assert await db.fetchval("SELECT count(*) FROM outbox_parked WHERE state <> 'dead'") == 0


async def test_a_row_store_works(hard: Connection, open_store: OpenStore) -> None:
    await goes_through(await open_store(), hard)


async def test_a_log_store_works(hard: Connection, open_log: OpenLog) -> None:
    await goes_through(await open_log(), hard)


async def test_a_log_store_sees_what_is_written_while_it_watches(
    hard: Connection, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one snapshot for the whole statement nothing new would ever be in it, only in the next."""
    monkeypatch.setattr(log_watch, "_ONE_STATEMENT", 4.0)
    store = await open_log()
    while not await hard.fetchval("SELECT count(*) FROM outbox_lane WHERE owner IS NOT NULL"):
        await (await store.claim(1)).release()
    while await store.watch(0.3, 0.002):
        await (await store.claim(1)).release()
    for _ in range(3):
        watching = asyncio.ensure_future(store.watch(4.0, 0.002, 0.05))
        await until(lambda: is_watching(hard), within=10.0)
        await write(hard, event("k"))
        assert await watching, "what was written meanwhile was not seen"
        claim = await store.claim(10)
        await claim.settle({one.id: DISPATCHED for one in claim.events})


async def test_a_log_store_behind_a_pooler_reads_committed(
    outbox: str, db: Connection, open_log: OpenLog, pgbouncer: OpenPgBouncer
) -> None:
    """There a session's settings do not hold, so each transaction brings its own. Read-only is told by `doctor`."""
    settings = {name: value for name, value in HARD.items() if name != "default_transaction_read_only"}
    await given(outbox, settings)
    try:
        await goes_through(await open_log(pgbouncer().dsn(outbox)), db)
    finally:
        await taken_back(outbox)


async def test_doctor_says_who_may_write_nothing(outbox: str, db: Connection) -> None:
    async def found() -> tuple[str, str]:
        (check,) = [one for one in await doctor.examine(db) if one.name == "defaults"]
        return check.verdict, check.found

    assert (await found())[0] == "ok"
    await given(outbox, {"default_transaction_read_only": "on"})
    try:
        verdict, told = await found()
        assert verdict == "warn"
        assert "is on for this database" in told
    finally:
        await taken_back(outbox)
    assert (await found())[0] == "ok"
