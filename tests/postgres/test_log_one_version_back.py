"""A rolling update of relays on the log store: those of the version before and those of this one share its lanes."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import former_log as former
import pytest
from operations_table import belongs_to
from outbox_table import event, write
from versions_together import Together

from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox import schema_steps
from quiesce.outbox.event import OutboxEvent
from quiesce.outbox.outcome import DISPATCHED
from quiesce.postgres import OutboxLog, connect, log_statements, schema, server_identity
from quiesce.postgres.driver import Connection
from quiesce.postgres.lane_records import LaneRecords
from quiesce.postgres.lanes import Lanes
from quiesce.postgres.log_connections import LogConnections

FORMER = 5
BOUND = 20.0


class FormerRecords(LaneRecords):
    """Takes lanes as the version before did."""

    async def own(self, badge: int, lanes: Iterable[int]) -> dict[int, int]:
        wanted = ",".join(map(str, sorted(set(lanes))))
        async with self._transaction() as connection:
            rows = await connection.fetch(former.OWN, str(badge), f"{{{wanted}}}", self._owner)
        return {int(lane): int(epoch) for lane, epoch in rows}


class FormerConnections(LogConnections):
    """Sends what the version before sent, and has never heard of what it did not know."""

    async def fetch(
        self,
        statement: str,
        *values: Any,
        record_class: type[asyncpg.Record] = asyncpg.Record,
        life: str | None = None,
    ) -> Sequence[Any]:
        if statement == log_statements.LANES:
            return [(*row, 0) for row in await super().fetch(former.LANES, *values, life=life)]
        if statement == log_statements.MOVE:
            return await super().fetch(former.MOVE, *values[:8], life=life)
        if statement == log_statements.SETTLE:
            return await super().fetch(former.SETTLE, *values[:8], *values[10:], life=life)
        return await super().fetch(statement, *values, record_class=record_class, life=life)


class FormerLog(OutboxLog):
    """The log store of the version before: how it took lanes, found their cursors and moved them."""

    def __init__(self, dsn: str, **settings: Any) -> None:
        super().__init__(dsn, **settings)
        self._connections.__class__ = FormerConnections

    async def open(self) -> "FormerLog":
        async with connect(self._dsn) as db:
            await belongs_to(db, "log")
        return self

    def _new_lanes(self) -> Lanes:
        lanes = super()._new_lanes()
        lanes._records.__class__ = FormerRecords
        return lanes


@pytest.fixture(autouse=True)
def look_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both look at new connections as the version before did, which works on the tables of either."""
    monkeypatch.setattr(schema, "require", lambda connection: asyncio.sleep(0))
    monkeypatch.setattr(server_identity, "_AHEAD", former.AHEAD)


@pytest.fixture
async def old(bare: str) -> str:
    """The tables of the version before."""
    async with connect(bare) as db:
        for step in schema_steps.migrations()[:FORMER]:
            await db.execute(step.sql)
    return bare


@pytest.fixture
async def db(old: str) -> AsyncIterator[Connection]:
    async with connect(old) as connection:
        yield connection


async def close(*stores: OutboxLog) -> None:
    for store in stores:
        await store.close(Deadline(time.monotonic() + 2.0))


async def drained(store: OutboxLog, count: int) -> list[UUID]:
    """Claims and settles until so many events have come. Each key's in order."""
    came: list[UUID] = []
    async with asyncio.timeout(BOUND):
        while len(came) < count:
            claim = await store.claim(100)
            came += [one.id for one in claim.events]
            if claim.events:
                await claim.settle({one.id: DISPATCHED for one in claim.events})
            else:
                await asyncio.sleep(0.002)
    return came


async def rows_of_lanes(db: Connection) -> tuple[int, int]:
    """How many there are, and the highest version of one."""
    row = await db.fetchrow("SELECT count(*), max(version) FROM outbox_lane")
    assert row is not None
    return int(row[0]), int(row[1])


async def test_a_former_relay_goes_on_while_the_tables_are_brought_up_and_this_one_follows_it(
    old: str, db: Connection
) -> None:
    store: OutboxLog = await FormerLog(old).open()
    first = [event(f"key {n % 30}") for n in range(60)]
    await write(db, *first)
    open_one = await store.claim(20)
    while len(open_one.events) < 20:
        await open_one.release()
        open_one = await store.claim(20)
    async with connect(old) as deploy:
        # While a claim of the former relay is open.
        assert await schema.apply(deploy, lock_timeout=2.0) == schema.latest_version()
    await open_one.settle({one.id: DISPATCHED for one in open_one.events})
    came = [one.id for one in open_one.events] + await drained(store, 40)
    assert sorted(came) == sorted(one.id for one in first)
    await close(store)
    # This version finds the cursors where the other has left them, and the other way round: a rollout is taken back.
    for make in (OutboxLog, FormerLog, OutboxLog):
        more = [event(f"key {n % 30}") for n in range(30)]
        await write(db, *more)
        store = await make(old).open()
        assert sorted(await drained(store, 30)) == sorted(one.id for one in more)
        assert (await store.claim(10)).events == []
        await close(store)
    assert await db.fetchval("SELECT sum(dispatched) FROM outbox_lane") == 150
    assert (await rows_of_lanes(db))[0] == 16


@pytest.mark.parametrize("seed", [1, 2])
async def test_both_versions_share_the_lanes_without_doubles_and_in_order(old: str, db: Connection, seed: int) -> None:
    await schema.apply(db)
    # The former one first, as in a rolling update; then each has its share.
    stores = [await FormerLog(old, claims=2).open(), await OutboxLog(old, claims=2).open()]
    written: list[OutboxEvent] = []
    together = Together()

    async def writer() -> None:
        # A relay that comes has its share a moment later. Until then there is something for both.
        while len(written) < 400 or len(together.of) < len(stores):
            if len(written) < len(together.published) + 200:
                some = [event(f"key {len(written) % 40 + n}") for n in range(10)]
                written.extend(some)
                await write(db, *some)
            await asyncio.sleep(0)
        while len(together.published) < len(written):
            await asyncio.sleep(0.005)
        together.done.set()

    async with asyncio.timeout(2 * BOUND), asyncio.TaskGroup() as running:
        for number, store in enumerate(stores):
            running.create_task(together.relay(store, Random(f"{seed} {number}")))
        running.create_task(writer())
    together.check(written)
    await close(*stores)
    assert (await rows_of_lanes(db))[0] == 16
