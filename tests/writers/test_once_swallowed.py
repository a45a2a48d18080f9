"""A handler that keeps an error of the database to itself has not handled its record."""

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from once_families import FAMILIES, opened, record

from quiesce.errors import TransactionAborted
from quiesce.inbox import Record
from quiesce.postgres import connect
from quiesce.workers.retries import Retries, Verdict


async def rows(dsn: str) -> tuple[int, int]:
    async with connect(dsn) as connection:
        return (
            await connection.fetchval("SELECT count(*) FROM inbox_entry"),
            await connection.fetchval("SELECT count(*) FROM effect"),
        )


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
async def test_K28_a_transaction_that_is_aborted_is_not_taken_for_handled(
    name: str, in_batches: bool, database: str
) -> None:
    async with connect(database) as connection:
        await connection.execute("CREATE TABLE effect (event_id text PRIMARY KEY)")
    async with opened(name, database) as family:

        async def handler(one: Record, connection: Any) -> None:
            await family.effect(one, connection)
            if swallows:
                with contextlib.suppress(Exception):
                    await family.effect(one, connection)

        async def handle_all(records: Sequence[Record], connection: Any) -> None:
            for one in records:
                await handler(one, connection)

        once = family.once_batch(family.db, "c", handle_all) if in_batches else family.once(family.db, "c", handler)
        given: Any = [record("e1")] if in_batches else record("e1")
        swallows = True
        with pytest.raises(TransactionAborted) as raised:
            await once(given)
        assert Retries().judge(raised.value) is Verdict.AGAIN, "an attempt, and no outage"
        assert await rows(database) == (0, 0)
        swallows = False
        assert await once(given) is None
        assert await rows(database) == (1, 1)


async def test_an_error_that_a_savepoint_took_back_is_the_handlers_own_business(database: str) -> None:
    async with connect(database) as connection:
        await connection.execute("CREATE TABLE effect (event_id text PRIMARY KEY)")
    async with opened("asyncpg", database) as family:

        async def handler(one: Record, connection: Any) -> None:
            await family.effect(one, connection)
            with contextlib.suppress(Exception):
                async with connection.transaction():
                    await family.effect(one, connection)

        assert await family.once(family.db, "c", handler)(record("e1")) is None
        assert await rows(database) == (1, 1)
