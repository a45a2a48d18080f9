"""SQLAlchemy's engines as resources: closed in time, whoever holds a connection, nothing of them left on the server."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import sqlalchemy as sa
from seen_from_beside import ON_THE_SERVER, call, nothing_left, only_who_asks_is_left, runs
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from quiesce.errors import IntakeClosed, SettingsError, Unavailable
from quiesce.lifecycle.phases import Part
from quiesce.postgres import connect
from quiesce.postgres.driver import Connection
from quiesce.sqlalchemy import open_async_engine, open_engine
from quiesce.testing.contracts.expectations import within
from quiesce.testing.loopback import free_port
from quiesce.testing.postgres import LocalPostgres

KINDS = pytest.mark.parametrize("kind", ["psycopg sync", "asyncpg async", "psycopg async"])


def make(kind: str, dsn: str, **settings: Any) -> Any:
    driver, _, how = kind.partition(" ")
    url = dsn.replace("postgresql://", f"postgresql+{driver}://")
    return (open_engine if how == "sync" else open_async_engine)(url, **settings)


@pytest.fixture
async def look(database: str) -> AsyncIterator[Connection]:
    """A connection beside the engine's."""
    async with connect(database) as connection:
        yield connection


async def take(engine: "sa.Engine | AsyncEngine") -> Any:
    """Takes a connection and keeps it: what a forgetful handler does."""
    if isinstance(engine, AsyncEngine):
        return await engine.connect()
    return await call(lambda: forgetful(engine))


def forgetful(engine: sa.Engine) -> sa.Connection:
    return engine.connect()


async def give_back(connection: Any) -> None:
    if isinstance(connection, sa.Connection):
        await call(connection.close)
    else:
        await connection.close()


async def query(engine: "sa.Engine | AsyncEngine", sql: str) -> Any:
    if isinstance(engine, AsyncEngine):
        async with engine.connect() as connection:
            return (await connection.execute(sa.text(sql))).scalar()

    def run() -> Any:
        with engine.connect() as connection:
            return connection.execute(sa.text(sql)).scalar()

    return await call(run)


async def end(connection: Any) -> None:
    """Lets go of what was cut: the driver complains, and that is all."""
    if isinstance(connection, sa.Connection):
        connection.invalidate()
        connection.close()
    else:
        await connection.invalidate()
        await connection.close()


@KINDS
async def test_it_opens_and_closes_and_leaves_nothing(kind: str, database: str, look: Connection) -> None:
    resource = make(kind, database, name="orders", pool_size=3)
    assert (resource.name, resource.part) == ("orders", Part.POOLS)
    engine = await resource.open()
    assert await query(engine, "SELECT 1") == 1
    assert await look.fetchval(ON_THE_SERVER) == 1
    closed = await resource.close(within(3.0))
    assert (closed.forced, closed.detail) == (False, "")
    await nothing_left(look)
    assert not (await resource.close(within(3.0))).forced, "safe to call twice"
    with pytest.raises(IntakeClosed):
        await query(engine, "SELECT 1")
    await nothing_left(look)


@KINDS
async def test_closing_what_was_never_opened_is_nothing(kind: str, database: str) -> None:
    assert not (await make(kind, database).close(within(1.0))).forced


@KINDS
async def test_closing_waits_for_who_gives_back_in_time(kind: str, database: str, look: Connection) -> None:
    resource = make(kind, database)
    engine = await resource.open()
    connection = await take(engine)
    closing = asyncio.ensure_future(resource.close(within(4.0)))
    await asyncio.wait({closing}, timeout=0.1)
    assert not closing.done(), "dispose alone would have been over"
    await give_back(connection)
    closed = await closing
    assert not closed.forced, closed.detail
    await nothing_left(look)


@KINDS
async def test_S6_a_connection_that_is_never_given_back_is_cut_and_named(
    kind: str, database: str, look: Connection
) -> None:
    resource = make(kind, database)
    engine = await resource.open()
    kept = await asyncio.create_task(take(engine), name="request 7")
    assert [task for task, _ in resource.holders()] == (["request 7"] if kind.endswith("async") else [])
    began = time.monotonic()
    closed = await resource.close(within(0.3))
    assert 0.25 < time.monotonic() - began < 1.3
    assert closed.forced
    assert "1 connection(s) not given back" in closed.detail
    assert "test_engines" in closed.detail
    assert ("request 7" if kind.endswith("async") else "request thread") in closed.detail
    assert ("in take" if kind.endswith("async") else "in forgetful") in closed.detail
    assert "server process" in closed.detail
    # Also when it is closed: the report is written last.
    assert [task for task, _ in resource.holders()] == (["request 7"] if kind.endswith("async") else [])
    await nothing_left(look)
    await end(kept)
    assert resource.holders() == []


@KINDS
async def test_one_that_is_held_in_a_transaction_frees_its_locks(kind: str, database: str, look: Connection) -> None:
    resource = make(kind, database)
    engine = await resource.open()
    kept = await take(engine)
    lock = sa.text("LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE")
    await (call(lambda: kept.execute(lock)) if kind.endswith("sync") and "async" not in kind else kept.execute(lock))
    assert (await resource.close(within(0.1))).forced
    await look.execute("SET lock_timeout = '2s'; LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE; RESET lock_timeout")
    await end(kept)


@KINDS
async def test_a_query_that_runs_is_ended_and_its_caller_gets_an_error(
    kind: str, database: str, look: Connection
) -> None:
    resource = make(kind, database)
    engine = await resource.open()
    sleeping = asyncio.ensure_future(query(engine, "SELECT pg_sleep(30)"))
    await runs(look, "pg_sleep(30)")
    closed = await resource.close(within(0.1))
    assert closed.forced
    assert "in query" in closed.detail or "in run" in closed.detail
    await asyncio.wait({sleeping}, timeout=2.0)
    assert sleeping.done(), "who waits for an answer is woken, in a thread too"
    assert sleeping.exception() is not None
    await nothing_left(look)


@KINDS
async def test_a_close_that_is_cancelled_cuts_too(kind: str, database: str, look: Connection) -> None:
    resource = make(kind, database)
    engine = await resource.open()
    kept = await take(engine)
    closing = asyncio.ensure_future(resource.close(within(30.0)))
    await asyncio.wait({closing}, timeout=0.1)
    closing.cancel()
    await asyncio.wait({closing}, timeout=2.0)
    assert closing.cancelled()
    await nothing_left(look)
    await end(kept)


@KINDS
@pytest.mark.needs("postgres")
@pytest.mark.xdist_group("engines of a server that hangs")
async def test_a_server_that_hangs_holds_nothing_past_the_deadline(
    kind: str, own_postgres: Callable[..., LocalPostgres]
) -> None:
    server = own_postgres()
    resource = make(kind, server.dsn())
    engine = await resource.open()
    idle = [await take(engine) for _ in range(2)]
    for connection in idle:
        await give_back(connection)
    server.pause()
    asking = asyncio.ensure_future(query(engine, "SELECT 1"))
    await asyncio.wait({asking}, timeout=0.2)
    began = time.monotonic()
    closed = await resource.close(within(0.5))
    assert time.monotonic() - began < 1.5
    assert closed.forced
    await asyncio.wait({asking}, timeout=3.0)
    assert asking.done()
    assert asking.exception() is not None
    server.resume()
    await only_who_asks_is_left(server)


@KINDS
async def test_a_server_that_is_not_there_is_unavailable(kind: str) -> None:
    with pytest.raises(Unavailable, match="cannot be reached now") as caught:
        await make(kind, f"postgresql://someone:s3cret@127.0.0.1:{free_port()}/db").open()
    assert "s3cret" not in str(caught.value)


@KINDS
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda dsn: dsn.rpartition("/")[0] + "/no_such_db", "no such database"),
        (lambda dsn: dsn.replace("postgres@", "nobody_here@"), "refuses the user"),
    ],
    ids=["database", "user"],
)
async def test_what_waiting_cannot_help_is_a_setting(
    kind: str, database: str, change: Callable[[str], str], told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        await make(kind, change(database)).open()


@pytest.mark.parametrize("open_one", [open_engine, open_async_engine])
def test_a_url_that_cannot_be_read_shows_no_secret(open_one: Callable[..., object]) -> None:
    with pytest.raises(SettingsError, match="cannot be read") as caught:
        open_one("no url but a s3cret")
    assert "s3cret" not in repr(caught.value)


async def test_a_driver_that_is_not_installed_is_told() -> None:
    with pytest.raises(SettingsError, match="needs a driver that is not installed"):
        await open_engine("postgresql+pg8000://h/db").open()


async def test_a_session_over_asyncpg_names_the_line_that_took_the_connection(database: str) -> None:
    resource = open_async_engine(database.replace("postgresql://", "postgresql+asyncpg://"))
    session = AsyncSession(await resource.open())
    await session.execute(sa.text("SELECT 1"))
    closed = await resource.close(within(0.1))
    assert "in test_a_session_over_asyncpg_names_the_line_that_took_the_connection" in closed.detail
    await session.invalidate()
