"""A consumer whose PostgreSQL is stopped (SIGSTOP) past the handler's bound: no attempt, no death, nothing lost."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from test_once_outage import Kept, Outages, id_of, until

from quiesce import Consumer, Service, running, service
from quiesce.inbox import Record
from quiesce.inbox.record import TopicPartition
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import RecordStarts, connect, inbox_schema, once
from quiesce.testing.memory_source import MemoryGroup, MemorySource
from quiesce.testing.postgres import LocalPostgres
from quiesce.workers import Retries

ZERO, ONE = TopicPartition("products", 0), TopicPartition("products", 1)

IN_HAND = "SELECT first_offset IS NOT NULL FROM record_start WHERE consumer = $1"

pytestmark = [pytest.mark.xdist_group("own_postgres"), pytest.mark.timeout(120)]

OwnPostgres = Callable[..., LocalPostgres]


async def prepared(own_postgres: OwnPostgres) -> LocalPostgres:
    server = own_postgres()
    async with connect(server.dsn()) as connection:
        await inbox_schema.apply(connection)
        await connection.execute("CREATE TABLE effect (event_id text)")
    return server


async def effects(server: LocalPostgres) -> list[str]:
    async with connect(server.dsn()) as connection:
        return [row["event_id"] for row in await connection.fetch("SELECT event_id FROM effect ORDER BY 1")]


@pytest.mark.parametrize("how", ["plain handlers", "an inbox", "starts counted"])
async def test_K32_a_server_that_hangs_past_the_handlers_bound_costs_no_attempt_and_ends_no_process(
    own_postgres: OwnPostgres, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = await prepared(own_postgres)
    group, kept, seen = MemoryGroup("products", 2), Kept(), Outages()

    async def effect(one: Record, connection: Any) -> None:
        await connection.execute("INSERT INTO effect VALUES ($1)", id_of(one))

    @service("orders", observers=[seen])
    async def orders(s: Service) -> None:
        # Asyncpg's own pool: no statement of it has a bound.
        pool = await s.open(asyncpg.create_pool(server.dsn(), min_size=2, max_size=20))

        async def plain(one: Record) -> None:
            async with pool.acquire() as connection, connection.transaction():
                await effect(one, connection)

        s.run(
            Consumer(
                MemorySource(group),
                once(pool, "orders", effect, event_id=id_of) if how == "an inbox" else plain,
                retries=Retries(
                    attempts=1,
                    backoff=Backoff(first=0.05, ceiling=0.2),
                    # The inbox sees for itself that the server hangs: what nobody knows may count here.
                    counted=(TimeoutError,) if how == "an inbox" else (),
                ),
                starts=RecordStarts(pool) if how == "starts counted" else None,
                dead_letters=kept,
                concurrency=2,
                handler_bound=1.0,
                name="orders",
            )
        )

    async with running(orders) as s:
        group.append(0, b"e1", key=b"a")
        await until(lambda: group.committed.get(ZERO) == 1)
        server.pause()
        try:
            group.append(0, b"e2", key=b"a")
            group.append(1, b"e3", key=b"b")
            if how == "starts counted":
                # They are not begun before it is known whether they have killed a process.
                await until(lambda: "cannot count starts" in caplog.text)
            else:
                await until(lambda: seen.outages >= 4)
            assert group.committed == {ZERO: 1}
        finally:
            server.resume()
        await until(lambda: group.committed == {ZERO: 2, ONE: 1})
        report = await s.stop()
    assert report.exit_code == 0
    assert set(await effects(server)) == {"e1", "e2", "e3"}
    assert (kept.records, seen.others) == ([], 0), "no attempt was counted"


async def test_the_close_of_the_starts_is_bounded_while_the_server_hangs_and_says_its_word_all_the_same(
    own_postgres: OwnPostgres,
) -> None:
    server = await prepared(own_postgres)
    records = [Record("orders", 0, offset, b"k", b"v") for offset in range(3)]
    async with asyncpg.create_pool(server.dsn(), min_size=1, max_size=1) as pool:
        for kind, given in (("dsn", server.dsn()), ("pool", pool)):
            starts = await RecordStarts(given).open()
            assert await starts.began(kind, records[:1], alone=True) == [0]
            server.pause()
            try:
                began = time.monotonic()
                await starts.close(Deadline(began + 2.0))
                took = time.monotonic() - began
            finally:
                server.resume()
            assert took < 4.0, kind
            # What was sent before it was cut is carried out once the server goes on: the stop is no death.
            async with connect(server.dsn()) as connection, asyncio.timeout(20):
                while await connection.fetchval(IN_HAND, kind):
                    await asyncio.sleep(0.05)
            successor = await RecordStarts(server.dsn()).open()
            assert await successor.began(kind, records) == [0, 0, 0]
            await successor.close(Deadline(time.monotonic() + 10.0))
