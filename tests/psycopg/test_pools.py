"""psycopg's pools as resources: closed in time, whoever holds a connection, and nothing of them left on the server."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from seen_from_beside import ON_THE_SERVER, call, nothing_left, only_who_asks_is_left, runs

from quiesce.errors import SettingsError, Unavailable
from quiesce.lifecycle.phases import Part
from quiesce.postgres import connect
from quiesce.postgres.driver import Connection
from quiesce.psycopg import open_pool, open_sync_pool
from quiesce.testing.contracts.expectations import within
from quiesce.testing.loopback import free_port
from quiesce.testing.postgres import LocalPostgres

BOTH = pytest.mark.parametrize("make", [open_pool, open_sync_pool], ids=["async", "sync"])

Make = Callable[..., Any]


@pytest.fixture
async def look(database: str) -> AsyncIterator[Connection]:
    """A connection beside the pool's."""
    async with connect(database) as connection:
        yield connection


async def take(pool: Any) -> Any:
    """Takes a connection and keeps it: what a forgetful handler does."""
    if isinstance(pool, AsyncConnectionPool):
        return await pool.getconn()
    return await call(lambda: forgetful(pool))


def forgetful(pool: "ConnectionPool[Any]") -> Any:
    return pool.getconn()


async def give_back(pool: Any, connection: Any) -> None:
    if isinstance(pool, AsyncConnectionPool):
        await pool.putconn(connection)
    else:
        await call(lambda: pool.putconn(connection))


async def query(pool: Any, sql: str) -> Any:
    if isinstance(pool, AsyncConnectionPool):
        async with pool.connection() as connection:
            return await (await connection.execute(sql.encode())).fetchone()

    def run() -> Any:
        with pool.connection() as connection:
            return connection.execute(sql.encode()).fetchone()

    return await call(run)


@BOTH
async def test_it_opens_and_closes_and_leaves_nothing(make: Make, database: str, look: Connection) -> None:
    resource = make(database, name="orders", min_size=2, max_size=4)
    assert (resource.name, resource.part) == ("orders", Part.POOLS)
    pool = await resource.open()
    assert await query(pool, "SELECT 1") == (1,)
    assert await look.fetchval(ON_THE_SERVER) == 2
    closed = await resource.close(within(3.0))
    assert (closed.forced, closed.detail) == (False, "")
    await nothing_left(look)
    assert not (await resource.close(within(3.0))).forced, "safe to call twice"


@BOTH
async def test_closing_what_was_never_opened_is_nothing(make: Make, database: str) -> None:
    assert not (await make(database).close(within(1.0))).forced


@BOTH
async def test_closing_waits_for_who_gives_back_in_time(make: Make, database: str, look: Connection) -> None:
    resource = make(database)
    pool = await resource.open()
    connection = await take(pool)
    closing = asyncio.ensure_future(resource.close(within(4.0)))
    await asyncio.wait({closing}, timeout=0.1)
    assert not closing.done(), "the pool's own close would have been over"
    await give_back(pool, connection)
    closed = await closing
    assert not closed.forced, closed.detail
    await nothing_left(look)


@BOTH
async def test_S6_a_connection_that_is_never_given_back_is_cut_and_named(
    make: Make, database: str, look: Connection
) -> None:
    resource = make(database, max_size=3)
    pool = await resource.open()
    kept = await asyncio.create_task(take(pool), name="request 7")
    assert [task for task, _ in resource.holders()] == (["request 7"] if make is open_pool else [])
    began = time.monotonic()
    closed = await resource.close(within(0.3))
    assert 0.25 < time.monotonic() - began < 1.3
    assert closed.forced
    assert "1 connection(s) not given back" in closed.detail
    assert "test_pools" in closed.detail
    assert ("request 7" if make is open_pool else "request thread") in closed.detail
    assert "server process" in closed.detail
    # Also when it is closed: the report is written last.
    assert [task for task, _ in resource.holders()] == (["request 7"] if make is open_pool else [])
    await nothing_left(look)
    await give_back(pool, kept)
    assert resource.holders() == []


@BOTH
async def test_one_that_is_held_in_a_transaction_frees_its_locks(make: Make, database: str, look: Connection) -> None:
    resource = make(database)
    pool = await resource.open()
    kept = await take(pool)
    lock = b"LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE"
    await (kept.execute(lock) if make is open_pool else call(lambda: kept.execute(lock)))
    assert (await resource.close(within(0.1))).forced
    await look.execute("SET lock_timeout = '2s'; LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE; RESET lock_timeout")
    kept.close() if make is open_sync_pool else await kept.close()


@BOTH
async def test_a_query_that_runs_is_cancelled_and_its_caller_gets_an_error(
    make: Make, database: str, look: Connection
) -> None:
    resource = make(database)
    pool = await resource.open()
    sleeping = asyncio.ensure_future(query(pool, "SELECT pg_sleep(30)"))
    await runs(look, "pg_sleep(30)")
    closed = await resource.close(within(0.1))
    assert closed.forced
    assert "in query" in closed.detail or "in run" in closed.detail
    await asyncio.wait({sleeping}, timeout=2.0)
    assert sleeping.done(), "who waits for an answer is woken, in a thread too"
    assert isinstance(sleeping.exception(), psycopg.Error)
    await nothing_left(look)


@BOTH
async def test_a_close_that_is_cancelled_cuts_too(make: Make, database: str, look: Connection) -> None:
    resource = make(database)
    pool = await resource.open()
    kept = await take(pool)
    closing = asyncio.ensure_future(resource.close(within(30.0)))
    await asyncio.wait({closing}, timeout=0.1)
    closing.cancel()
    await asyncio.wait({closing}, timeout=2.0)
    assert closing.cancelled()
    await nothing_left(look)
    kept.close() if make is open_sync_pool else await kept.close()


@BOTH
@pytest.mark.needs("postgres")
@pytest.mark.xdist_group("pools of a server that hangs")
async def test_a_server_that_hangs_holds_nothing_past_the_deadline(
    make: Make, own_postgres: Callable[..., LocalPostgres]
) -> None:
    server = own_postgres()
    resource = make(server.dsn(), min_size=2)
    pool = await resource.open()
    server.pause()
    asking = asyncio.ensure_future(query(pool, "SELECT 1"))
    await asyncio.wait({asking}, timeout=0.2)
    began = time.monotonic()
    closed = await resource.close(within(0.5))
    assert time.monotonic() - began < 1.5
    assert closed.forced
    await asyncio.wait({asking}, timeout=2.0)
    assert asking.done()
    assert isinstance(asking.exception(), psycopg.Error)
    server.resume()
    await only_who_asks_is_left(server)


@BOTH
async def test_a_server_that_is_not_there_is_unavailable(make: Make) -> None:
    with pytest.raises(Unavailable, match="cannot be reached now") as caught:
        await make(f"postgresql://someone:s3cret@127.0.0.1:{free_port()}/db").open()
    assert "s3cret" not in str(caught.value)


@BOTH
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda dsn: dsn.rpartition("/")[0] + "/no_such_db", "no such database"),
        (lambda dsn: dsn.replace("postgres@", "nobody_here@"), "refuses the user"),
    ],
    ids=["database", "user"],
)
async def test_what_waiting_cannot_help_is_a_setting(
    make: Make, database: str, change: Callable[[str], str], told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        await make(change(database)).open()


@BOTH
def test_a_dsn_that_cannot_be_read_shows_no_secret(make: Make) -> None:
    with pytest.raises(SettingsError, match="cannot be read") as caught:
        make("host=h pass word=s3cret")
    assert "s3cret" not in repr(caught.value)


@pytest.mark.parametrize("sizes", [{"min_size": 3, "max_size": 2}, {"min_size": -1}, {"max_size": 0}])
@BOTH
def test_sizes_that_do_not_fit_are_told(make: Make, sizes: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match="min_size"):
        make("postgresql://nowhere/db", **sizes)


async def test_a_configure_of_the_users_own_still_runs(database: str) -> None:
    seen: list[object] = []

    async def configure(connection: object) -> None:
        seen.append(connection)

    resource = open_pool(database, configure=configure)
    await resource.open()
    await resource.close(within(3.0))
    assert len(seen) == 1


async def test_threads_of_a_closed_pool_are_gone(database: str) -> None:
    before = set(threading.enumerate())
    resource = open_sync_pool(database)
    await resource.open()
    await resource.close(within(3.0))
    end = time.monotonic() + 2
    while left := [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]:
        assert time.monotonic() < end, left
        await asyncio.sleep(0.01)
