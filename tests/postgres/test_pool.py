"""The application's pool: closed in time, whoever holds a connection, and nothing of it left on the server."""

import asyncio
import time

import asyncpg
import pytest
from outbox_table import until

from quiesce.errors import SettingsError
from quiesce.lifecycle.phases import Part
from quiesce.postgres import open_pool
from quiesce.postgres.driver import Connection
from quiesce.testing.contracts.expectations import within

ON_THE_SERVER = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"
)


async def nothing_left(db: Connection, seconds: float) -> None:
    async def gone() -> bool:
        return bool(await db.fetchval(ON_THE_SERVER) == 0)

    await until(gone, within=seconds)


async def test_it_opens_and_closes_and_leaves_nothing(outbox: str, db: Connection) -> None:
    resource = open_pool(outbox, name="orders", min_size=2, max_size=4)
    assert (resource.name, resource.part) == ("orders", Part.POOLS)
    pool = await resource.open()
    async with pool.acquire() as connection:
        assert await connection.fetchval("SELECT 1") == 1
    assert await db.fetchval(ON_THE_SERVER) == 2
    closed = await resource.close(within(3.0))
    assert (closed.forced, closed.detail) == (False, "")
    await nothing_left(db, 0.5)
    assert not (await resource.close(within(3.0))).forced


async def test_closing_what_was_never_opened_is_nothing(outbox: str) -> None:
    assert not (await open_pool(outbox).close(within(1.0))).forced


async def test_closing_waits_for_who_gives_back_in_time(outbox: str, db: Connection) -> None:
    resource = open_pool(outbox)
    pool = await resource.open()
    connection = await pool.acquire()
    closing = asyncio.ensure_future(resource.close(within(3.0)))
    await asyncio.wait({closing}, timeout=0.05)
    assert not closing.done()
    assert await connection.fetchval("SELECT 1") == 1
    await pool.release(connection)
    assert not (await closing).forced
    await nothing_left(db, 0.5)


async def forgetful_handler(pool: "asyncpg.Pool[asyncpg.Record]") -> object:
    return await pool.acquire()


async def test_S6_a_connection_that_is_never_given_back_is_cut_and_named(outbox: str, db: Connection) -> None:
    resource = open_pool(outbox, max_size=3)
    pool = await resource.open()
    kept = await asyncio.create_task(forgetful_handler(pool), name="request 7")
    async with pool.acquire() as returned:
        await returned.fetchval("SELECT 1")
    began = time.monotonic()
    closed = await resource.close(within(0.2))
    assert 0.15 < time.monotonic() - began < 1.2
    assert closed.forced
    assert "1 connection(s) not given back" in closed.detail
    assert "test_pool" in closed.detail
    assert "forgetful_handler" in closed.detail
    assert "request 7" in closed.detail
    await nothing_left(db, 0.5)
    with pytest.raises(asyncpg.InterfaceError):
        await pool.fetchval("SELECT 1")
    del kept


async def test_one_that_is_held_in_a_transaction_frees_its_locks(outbox: str, db: Connection) -> None:
    resource = open_pool(outbox)
    pool = await resource.open()
    connection = await pool.acquire()
    await connection.execute("BEGIN; LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE")
    closed = await resource.close(within(0.1))
    assert "in a transaction" in closed.detail
    await db.execute("SET lock_timeout = '1s'; LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE; RESET lock_timeout")


async def test_a_query_that_runs_does_not_outlive_the_pool_by_long(outbox: str, db: Connection) -> None:
    resource = open_pool(outbox)
    pool = await resource.open()
    sleeping = asyncio.ensure_future(pool.execute("SELECT pg_sleep(30)"))

    async def runs() -> bool:
        return bool(await db.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)' "))

    await until(runs)
    closed = await resource.close(within(0.1))
    assert closed.forced
    # The task is asyncpg's own coroutine: nobody's code is in it.
    assert "unknown place" in closed.detail
    await nothing_left(db, 2.5)
    await asyncio.wait({sleeping}, timeout=1.0)
    assert sleeping.done()
    assert sleeping.exception() is not None


async def test_O19_a_cancelled_query_leaks_nothing(outbox: str, db: Connection) -> None:
    resource = open_pool(outbox, min_size=0, max_size=2)
    pool = await resource.open()
    for _ in range(5):
        query = asyncio.ensure_future(pool.execute("SELECT pg_sleep(30)"))

        async def runs() -> bool:
            return bool(
                await db.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(30)' AND state = 'active' "
                    "AND datname = current_database()"
                )
            )

        await until(runs)
        query.cancel()
        await asyncio.wait({query}, timeout=3.0)
        assert query.cancelled()
    assert await pool.fetchval("SELECT 1") == 1
    closed = await resource.close(within(3.0))
    assert not closed.forced, closed.detail
    await nothing_left(db, 0.5)


async def test_a_close_that_is_cancelled_cuts_too(outbox: str, db: Connection) -> None:
    resource = open_pool(outbox)
    pool = await resource.open()
    kept = await pool.acquire()
    closing = asyncio.ensure_future(resource.close(within(30.0)))
    await asyncio.wait({closing}, timeout=0.05)
    closing.cancel()
    await asyncio.wait({closing}, timeout=1.0)
    assert closing.cancelled()
    await nothing_left(db, 0.5)
    del kept


async def test_many_acquires_are_remembered_only_while_they_last(outbox: str, db: Connection) -> None:
    resource = open_pool(outbox, max_size=2)
    pool = await resource.open()
    for _ in range(50):
        async with pool.acquire():
            pass
    assert resource._holders.now() == []
    assert len(resource._holders._last) <= 2
    await resource.close(within(3.0))


async def test_a_setup_of_the_users_own_still_runs(outbox: str) -> None:
    seen = []

    async def setup(connection: object) -> None:
        seen.append(connection)

    resource = open_pool(outbox, setup=setup)
    pool = await resource.open()
    assert await pool.fetchval("SELECT 1") == 1
    assert len(seen) == 1
    await resource.close(within(3.0))


async def test_the_server_probes_for_a_client_that_vanished(outbox: str) -> None:
    resource = open_pool(outbox)
    pool = await resource.open()
    for _ in range(2):
        # The second time after the pool's reset, which takes back what a session has set.
        async with pool.acquire() as connection:
            assert await connection.fetchval("SHOW client_connection_check_interval") == "1s"
            assert await connection.fetchval("SHOW tcp_keepalives_idle") == "15"
            assert await connection.fetchval("SHOW tcp_user_timeout") == "30000"
    await resource.close(within(3.0))


@pytest.mark.parametrize("sizes", [{"min_size": 3, "max_size": 2}, {"min_size": -1}, {"max_size": 0}])
def test_sizes_that_do_not_fit_are_told(sizes: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match="min_size"):
        open_pool("postgresql://nowhere/db", **sizes)  # type: ignore[arg-type] # the other settings are Any
