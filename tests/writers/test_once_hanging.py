"""A database that hangs, or refuses us, makes no handler look stuck, and no record guilty."""

import asyncio
import uuid
from typing import Any

import asyncpg
import pytest
from once_families import FAMILIES, opened, record
from wire_proxy import WireProxy

from quiesce.errors import Unavailable
from quiesce.inbox import Record
from quiesce.postgres import once
from quiesce.testing.postgres_address import PostgresAddress
from quiesce.workers.retries import is_outage

ENDS_WITHIN = 8.0
"""Seconds, for a machine that is slow. Without a bound of ours psycopg takes ten, and asyncpg for ever."""


@pytest.mark.parametrize("where", ["in a statement", "between statements"])
@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "SQLAlchemy engine", "SQLAlchemy psycopg engine"])
async def test_K32_a_cancel_ends_while_the_database_hangs_and_the_next_record_runs(
    name: str, where: str, database: str
) -> None:
    inside, hangs = asyncio.Event(), asyncio.Event()

    async def handler(one: Record, connection: Any) -> None:
        if hangs.is_set():
            return
        hangs.set()
        proxy.freeze()
        if where == "in a statement":
            asyncio.get_running_loop().call_later(0.1, inside.set)
            await family.run(connection, "SELECT 1")
        inside.set()
        await asyncio.Event().wait()

    async with WireProxy(database) as proxy, opened(name, proxy.dsn.partition("?")[0]) as family:
        handle = family.once(family.db, "orders", handler)
        causes: list[BaseException | None] = []

        async def calling() -> None:
            try:
                await handle(record("e1"))
            except asyncio.CancelledError as cancelled:
                causes.append(cancelled.__cause__)
                raise

        call = asyncio.create_task(calling())
        async with asyncio.timeout(30):
            await inside.wait()
        call.cancel()
        await asyncio.wait({call}, timeout=ENDS_WITHIN)
        ended = call.done()
        proxy.thaw()
        assert ended, "the consumer would call the handler stuck, and end the process"
        assert call.cancelled()
        if (name, where) != ("SQLAlchemy engine", "in a statement"):
            # There SQLAlchemy gives the connection up at once, and nobody learns whether the server answers.
            assert isinstance(causes[0], Unavailable), "at the handler's bound that is an outage, and no attempt"
        async with asyncio.timeout(30):
            assert await handle(record("e1")) is None, "it was rolled back, and the pool goes on"


@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "SQLAlchemy engine", "SQLAlchemy psycopg engine"])
async def test_a_cancel_that_the_database_answers_blames_nobody(name: str, database: str) -> None:
    inside = asyncio.Event()

    async def handler(one: Record, connection: Any) -> None:
        asyncio.get_running_loop().call_later(0.1, inside.set)
        await family.run(connection, "SELECT pg_sleep(60)")

    async with opened(name, database) as family:
        call = asyncio.create_task(family.once(family.db, "orders", handler)(record("e1")))
        async with asyncio.timeout(30):
            await inside.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await call
        assert not isinstance(cancelled.value.__cause__, Unavailable)


@pytest.mark.parametrize("name", FAMILIES)
async def test_K32_a_user_who_is_refused_is_an_outage_and_no_fault_of_a_record(
    name: str, postgres: PostgresAddress, database_template: str
) -> None:
    its_name, user = (f"quiesce_{what}_{uuid.uuid4().hex[:12]}" for what in ("refused", "user"))
    dsn = postgres.create_database(its_name, database_template)
    postgres.execute(f"CREATE ROLE {user} NOLOGIN", its_name)
    refused = dsn.replace("//postgres@", f"//{user}@")
    assert refused != dsn
    try:
        async with opened(name, refused, timeout=0.3) as family:
            with pytest.raises(Unavailable):
                await family.once(family.db, "orders", family.effect)(record("e1"))
        postgres.execute(f"ALTER ROLE {user} LOGIN", its_name)
        async with opened(name, refused) as family:
            with pytest.raises(Exception, match="permission denied") as no_right:
                await family.once(family.db, "orders", family.effect)(record("e1"))
            assert is_outage(no_right.value), "a right that is missing is granted some time"
    finally:
        postgres.execute(f"DROP OWNED BY {user}; DROP ROLE {user}", its_name)
        postgres.drop_database(its_name)


async def test_K32_whatever_fails_before_the_transaction_is_no_fault_of_a_record(database: str) -> None:
    async def broken(connection: Any) -> None:
        raise RuntimeError("the setup of the pool is wrong")

    async with asyncpg.create_pool(database, min_size=0, max_size=1, setup=broken) as pool:
        with pytest.raises(Unavailable, match="setup of the pool is wrong"):
            await once(pool, "orders", lambda record, connection: asyncio.sleep(0))(record("e1"))


async def test_a_connection_that_was_given_back_amid_the_call_does_not_hide_the_error(
    database: str,
) -> None:
    async def cuts(one: Record, connection: Any) -> None:
        connection.terminate()
        raise ZeroDivisionError

    async def gives_back(one: Record, connection: Any) -> None:
        connection.terminate()

    async with asyncpg.create_pool(database, min_size=0, max_size=1) as pool:
        for handler in (cuts, gives_back):
            with pytest.raises(Unavailable) as raised:
                await once(pool, "orders", handler)(record("e1"))
            assert raised.value.__cause__ is not None
