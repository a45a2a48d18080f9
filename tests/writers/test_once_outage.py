"""A consumer with an inbox while the real database is away: it holds, counts nothing, and goes on."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from quiesce import Consumer, Service, running, service
from quiesce.inbox import Record
from quiesce.inbox.events import HandlerFailed
from quiesce.inbox.reason import Reason
from quiesce.inbox.record import TopicPartition
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.postgres import connect, inbox_schema, once, open_pool
from quiesce.testing.memory_source import MemoryGroup, MemorySource
from quiesce.testing.postgres import LocalPostgres
from quiesce.workers import Retries

ZERO, ONE = TopicPartition("products", 0), TopicPartition("products", 1)


class Kept:
    """Where a counted attempt would end up at once."""

    name = "kept"
    part = Part.PRODUCERS

    def __init__(self) -> None:
        self.records: list[Record] = []

    async def open(self) -> "Kept":
        return self

    async def close(self, deadline: Deadline) -> Closed:
        return Closed()

    async def set_aside(self, record: Record, reason: Reason, deadline: Deadline) -> None:
        self.records.append(record)


class Outages:
    """An observer that counts failures of handlers: outages, and others."""

    def __init__(self) -> None:
        self.outages = self.others = 0

    def observe(self, event: Event) -> None:
        if isinstance(event, HandlerFailed):
            self.outages += event.outage
            self.others += not event.outage


def id_of(record: Record) -> str:
    return (record.value or b"").decode()


async def effect(record: Record, connection: Any) -> None:
    await connection.execute("INSERT INTO effect VALUES ($1)", id_of(record))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not true():
            await asyncio.sleep(0.02)


@pytest.mark.xdist_group("own_postgres")
async def test_K32_a_server_that_is_away_is_waited_for_and_a_stop_works_meanwhile(
    own_postgres: Callable[..., LocalPostgres],
) -> None:
    server = own_postgres()
    async with connect(server.dsn()) as connection:
        await inbox_schema.apply(connection)
        await connection.execute("CREATE TABLE effect (event_id text)")
    group, kept, seen = MemoryGroup("products", 2), Kept(), Outages()

    @service("orders", observers=[seen])
    async def orders(s: Service) -> None:
        db = await s.open(open_pool(server.dsn(), max_size=2))
        retries = Retries(attempts=1, backoff=Backoff(first=0.05, ceiling=0.2))
        handler = once(db, "orders", effect, event_id=id_of)
        s.run(Consumer(MemorySource(group), handler, retries=retries, dead_letters=kept, concurrency=2))

    async with running(orders) as s:
        group.append(0, b"e1", key=b"a")
        await until(lambda: group.committed.get(ZERO) == 1)
        await asyncio.to_thread(server.stop, "immediate")
        group.append(0, b"e2", b"e1", key=b"a")
        group.append(1, b"e3", key=b"b")
        await until(lambda: seen.outages >= 6)
        assert group.committed == {ZERO: 1}, "nothing is committed meanwhile"
        await asyncio.to_thread(server.start)
        await until(lambda: group.committed == {ZERO: 3, ONE: 1})
        async with connect(server.dsn()) as connection:
            rows = await connection.fetch("SELECT event_id FROM effect ORDER BY 1")
        assert [row["event_id"] for row in rows] == ["e1", "e2", "e3"]
        await asyncio.to_thread(server.stop, "immediate")
        before = seen.outages
        group.append(0, b"e4", key=b"a")
        await until(lambda: seen.outages > before)
        report = await s.stop()
    assert report.exit_code == 0
    assert group.committed == {ZERO: 3, ONE: 1}
    assert (kept.records, seen.others) == ([], 0), "no attempt was counted"
