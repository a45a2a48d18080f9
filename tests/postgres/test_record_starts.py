"""Starts of records in PostgreSQL: what a death, a stop and a rebalance leave behind."""

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from quiesce.errors import SchemaMissing, Unavailable
from quiesce.inbox.record import Record
from quiesce.postgres import RecordStarts, connect
from quiesce.postgres.borrowing import Borrowing
from quiesce.testing.contracts.expectations import within
from quiesce.testing.postgres_address import PostgresAddress


def records(*offsets: int, partition: int = 0, topic: str = "orders") -> Sequence[Record]:
    return [Record(topic, partition, offset, b"k", b"v") for offset in offsets]


async def row(dsn: str, partition: int = 0) -> tuple[object, ...]:
    async with connect(dsn) as connection:
        found = await connection.fetchrow(
            "SELECT first_offset, last_offset, suspect_first, suspect_last, deaths FROM record_start "
            "WHERE consumer = 'c' AND partition = $1",
            partition,
        )
        assert found is not None
        return tuple(found)


async def test_K23_a_death_is_counted_where_it_outlives_the_process(database: str) -> None:
    first, second = await RecordStarts(database).open(), await RecordStarts(database).open()
    both = [*records(5, 6, 7), *records(2, partition=1)]
    assert await first.began("c", both) == [0, 0, 0, 0]
    await first.ended("c", records(5))
    # It is gone without a word. The next one sees all that it had in hand, and notes none of them yet.
    assert await second.began("c", [*both, *records(8)]) == [1, 1, 1, 1, 0]
    assert await second.began("another", records(5)) == [0]
    assert await row(database) == (None, None, 5, 7, "{}")
    for record in records(5, 6):
        assert await second.began("c", [record], alone=True) == [1]
        await second.ended("c", [record])
    assert await second.began("c", records(7), alone=True) == [1]
    # It dies again, now alone; and once more.
    third = await RecordStarts(database).open()
    assert await third.began("c", records(7, 8, 9)) == [2, 0, 0]
    assert await third.began("c", records(7), alone=True) == [2]
    fourth = await RecordStarts(database).open()
    assert await fourth.began("c", records(7), alone=True) == [3]
    await fourth.ended("c", records(7))
    assert await fourth.began("c", records(7, 8, 9)) == [0, 0, 0], "what ended counts no more"
    await fourth.ended("c", records(7, 8, 9))
    assert await row(database) == (None, None, None, None, "{}")
    for starts in (first, second, third, fourth):
        await starts.close(within(5))


async def test_a_rebalance_that_was_quicker_counts_nothing_once_the_late_one_speaks(database: str) -> None:
    slow, new = await RecordStarts(database).open(), await RecordStarts(database).open()
    assert await slow.began("c", records(4)) == [0]
    assert await new.began("c", records(4)) == [1]
    await slow.ended("c", records(4))
    assert await new.began("c", records(4), alone=True) == [0]
    await new.ended("c", records(4))
    # And back again: the first one has to look anew.
    assert await slow.began("c", records(5, 6)) == [0, 0]
    assert await new.began("c", records(6)) == [1]
    await slow.close(within(5))
    assert await new.began("c", records(7)) == [0]
    await new.close(within(5))


async def test_what_comes_while_others_are_in_hand_is_noted_with_them(database: str) -> None:
    starts = await RecordStarts(database).open()
    await starts.began("c", records(1, 2))
    await starts.began("c", records(3))
    await starts.ended("c", records(2, 3))
    assert await row(database) == (1, 3, None, None, "{}")
    await starts.ended("c", records(1))
    assert await row(database) == (None, None, None, None, "{}")
    await starts.close(within(5))


async def test_a_pool_of_the_application_will_do(database: str) -> None:
    async with asyncpg.create_pool(database, min_size=1, max_size=1) as pool:
        starts = await RecordStarts(pool).open()
        assert await starts.began("c", records(1)) == [0]
        await asyncio.gather(starts.ended("c", records(1)), starts.began("c", records(2)))
        assert await row(database) == (2, 2, None, None, "{}")
        await starts.close(within(5))


async def test_a_database_that_is_away_notes_nothing_and_ends_no_handler(
    database: str, postgres: PostgresAddress, caplog: pytest.LogCaptureFixture
) -> None:
    starts = await RecordStarts(database).open()
    await starts.began("c", records(1))
    name = database.rpartition("/")[2]
    await asyncio.to_thread(
        postgres.execute,
        f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false; '
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
    )
    with pytest.raises(Unavailable):
        await starts.began("c", records(2))
    await starts.ended("c", records(1))
    assert "cannot note that records ended" in caplog.text
    await asyncio.to_thread(postgres.execute, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    assert await starts.began("c", records(2)) == [0]
    assert await row(database) == (2, 2, None, None, "{}")
    await starts.close(within(5))


async def test_a_table_that_is_not_there_is_named(bare: str) -> None:
    starts = RecordStarts(bare)
    with pytest.raises(SchemaMissing, match="quiesce inbox schema apply"):
        await starts.open()
    await starts.close(within(5))


async def test_a_cut_between_two_steps_of_a_statement_is_told_as_any_other(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    borrowing = Borrowing(database, "starts", 5.0)
    prepare = asyncpg.Connection._get_statement  # type: ignore[attr-defined]

    async def slow(self: asyncpg.Connection, *args: Any, **options: Any) -> Any:
        statement = await prepare(self, *args, **options)
        async with asyncio.timeout(20):
            while not self.is_closed():
                await asyncio.sleep(0)
        return statement

    monkeypatch.setattr(asyncpg.Connection, "_get_statement", slow)
    with pytest.raises(Unavailable, match="did not answer: it was cut after"):
        async with borrowing.connection(0.05) as connection:
            await connection.fetchval("SELECT 1")
    await borrowing.close(within(5))
