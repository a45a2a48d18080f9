"""A rolling update: while it lasts, relays and writers of the version before work on the tables of this one."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID

import former_version as former
import pytest
from outbox_table import event, write
from versions_together import Together

from quiesce.errors import SchemaMissing, SettingsError
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox import schema_steps
from quiesce.outbox.event import ClaimedEvent, OutboxEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.outbox.ports import OutboxStore
from quiesce.postgres import OutboxLog, OutboxRows, connect, schema
from quiesce.postgres.driver import Connection
from quiesce.postgres.operating import operating
from quiesce.postgres.row_claim import RowClaim, events_of
from quiesce.postgres.row_positions import array
from quiesce.postgres.row_reader import RowReader
from quiesce.postgres.row_statements import RowStatements
from quiesce.postgres.schema_differences import differences

FORMER = 1

LIFTED = {"constraint outbox_lane.outbox_lane_pkey", "index outbox_lane_pkey"}
"""It has a column more."""


class FormerRows(OutboxRows):
    """The row store of the version before: its statements, its look at the tables, and how it asked."""

    async def open(self) -> "FormerRows":
        self._connections.reopen()
        self._statements = former.STATEMENTS
        self._reader = FormerReader(16 * 1024 * 1024)
        async with connect(self._dsn) as connection:
            assert await schema.applied_version(connection) >= FORMER
        return self


class FormerReader(RowReader):
    async def read(
        self,
        connection: Connection,
        limit: int,
        statements: RowStatements,
        mapped: object,
        claims: Sequence[RowClaim],
    ) -> list[ClaimedEvent]:
        in_flight = {position for claim in claims for position in claim._in_order}
        self._left = {}
        rows = await connection.fetch(
            statements.claim, limit, array(in_flight), self._max_bytes, self._floor.begin(time.monotonic())
        )
        events, _ = events_of([(row[0], row[1] and str(row[1]), *row[2:]) for row in rows], self._left)
        return events


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


async def write_as_before(db: Connection, *events: OutboxEvent) -> None:
    """As writers of the version before did: the first by one statement, the others by the one for many."""
    first, *others = events
    values = [(one.id, one.topic, one.aggregate_id, one.type, one.encoded_payload(), "{}") for one in others]
    async with db.transaction():
        await db.execute(
            former.INSERT, first.id, first.topic, first.aggregate_id, first.type, first.encoded_payload(), "{}"
        )
        if values:
            await db.execute(former.INSERT_MANY, *map(list, zip(*values, strict=True)))


_PARTS = """
SELECT format('column %s.%s', c.relname, a.attname) AS name, concat_ws(' ', a.attnum,
    format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END, a.attidentity, a.attgenerated,
    'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid)) AS is
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
UNION ALL
SELECT format('constraint %s.%s', conrelid::regclass, conname), pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT format('index %s', indexrelid::regclass), pg_get_indexdef(indexrelid)
FROM pg_index WHERE indrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)
UNION ALL
SELECT format('function %s', oid::regprocedure), pg_get_functiondef(oid)
FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL
SELECT format('file of %s', relname), relfilenode::text
FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
"""
"""Whatever the tables consist of. A table that was rewritten has another file, and writers waited for it."""


async def parts(db: Connection) -> dict[str, str]:
    return {row["name"]: row["is"] for row in await db.fetch(_PARTS)}


def _called_alike(before: str, after: str | None) -> bool:
    head, found, _ = before.partition("LANGUAGE plpgsql")
    return bool(found) and after is not None and after.startswith(head + found)


async def test_a_later_step_only_adds(db: Connection) -> None:
    await write_as_before(db, *(event(f"key {n}") for n in range(5)))
    for step in schema_steps.migrations()[FORMER:]:
        before = await parts(db)
        rows = await db.fetch("SELECT * FROM outbox_event ORDER BY position")
        await db.execute(step.sql)
        after = await parts(db)
        changed = {name for name in before if after.get(name) != before[name]}
        # What a function does may change: who calls it calls it by the same name and gets the same columns. What is
        # refused no more stops nobody.
        assert all(_called_alike(before[name], after.get(name)) for name in changed - LIFTED), step.version
        of_before = {name.split()[1].split(".")[0] for name in before if name.startswith("column")}
        for name in after.keys() - before.keys():
            kind, what = name.split(maxsplit=1)
            # A former writer names its columns, and a former relay too: a new one must fill itself.
            fills_itself = "NOT NULL" not in after[name] or "DEFAULT" in after[name]
            assert kind != "column" or what.split(".")[0] not in of_before or fills_itself, name
            # What refuses more than before would stop a former writer.
            fills = what.endswith("_not_null")
            assert kind != "constraint" or fills or what.split(".")[0] not in of_before, name
            assert kind != "index" or "UNIQUE" not in after[name] or "_pkey" in what, name
        assert await db.fetch("SELECT * FROM outbox_event ORDER BY position") == rows


async def test_former_relays_and_writers_go_on_while_the_tables_are_brought_up(old: str, db: Connection) -> None:
    store = await FormerRows(old).open()
    written = [event("a"), event("b"), event("a"), event("c"), event("d")]
    await write_as_before(db, *written)
    claim = await store.claim(3)
    async with connect(old) as deploy:
        # While a claim of a former relay is open, with its locks.
        assert await schema.apply(deploy, lock_timeout=2.0) == schema.latest_version()
    ids = [one.id for one in claim.events]
    await claim.settle({ids[0]: DISPATCHED, ids[1]: Retry("no leader", 0.0)})
    await write_as_before(db, event("e"), event("b"))
    claim = await store.claim(10)
    assert [(one.aggregate_id, one.attempts) for one in claim.events] == [
        ("b", 1),
        ("a", 0),
        ("c", 0),
        ("d", 0),
        ("e", 0),
        ("b", 0),
    ]
    outcomes: dict[UUID, Outcome] = {one.id: DISPATCHED for one in claim.events}
    outcomes[claim.events[2].id] = Dead("too large")
    settled = await claim.settle(outcomes)
    assert (settled.dispatched, settled.dead) == (5, 1)
    assert (await store.claim(10)).events == []
    await store.close(Deadline.never())


async def test_a_retry_or_a_death_that_one_version_records_is_read_by_the_other(old: str, db: Connection) -> None:
    await schema.apply(db)
    stores: list[OutboxRows] = [await FormerRows(old).open(), await OutboxRows(old).open()]
    for one, other in (stores, stores[::-1]):
        retried, behind, dead = event("k"), event("k"), event("d")
        await write_as_before(db, retried, behind, dead)
        claim = await one.claim(10)
        await claim.settle({retried.id: Retry("no leader", 60.0), dead.id: Dead("too large")})
        assert (await other.claim(10)).events == []
        await db.execute("UPDATE outbox_parked SET next_at = now() WHERE state = 'retry'")
        claim = await other.claim(10)
        assert [(one.id, one.attempts) for one in claim.events] == [(retried.id, 1), (behind.id, 0)]
        await claim.settle({one.id: DISPATCHED for one in claim.events})
        assert await db.fetchval("SELECT count(*) FROM outbox_parked WHERE state = 'retry'") == 0
    for store in stores:
        await store.close(Deadline.never())


@pytest.mark.parametrize("seed", [1, 2])
async def test_both_versions_share_the_table_without_doubles_and_in_order(old: str, db: Connection, seed: int) -> None:
    await schema.apply(db)
    makers: list[Callable[..., OutboxRows]] = [FormerRows, OutboxRows, FormerRows, OutboxRows]
    stores = [await make(old, claims=2).open() for make in makers]
    written = [event(f"key {n % 7}") for n in range(300)]
    together = Together()

    async def writer() -> None:
        for begin in range(0, len(written), 10):
            await write_as_before(db, *written[begin : begin + 10])
        end = time.monotonic() + 20.0
        waiting = "SELECT count(*) FROM outbox_event WHERE dispatched_at IS NULL"
        while await db.fetchval(waiting):
            assert time.monotonic() < end, "not all was published"
            await asyncio.sleep(0.005)
        together.done.set()

    async with asyncio.timeout(40), asyncio.TaskGroup() as running:
        for number, store in enumerate(stores):
            running.create_task(together.relay(store, Random(f"{seed} {number}")))
        running.create_task(writer())
    together.check(written)
    assert min(together.of.values()) > 20, together.of
    for store in stores:
        await store.close(Deadline.never())


async def test_the_log_store_does_not_take_over_beside_former_relays(old: str, db: Connection) -> None:
    """Former relays do not know that a kind of store is written down, so their marks must say it."""
    await schema.apply(db)
    former_store = await FormerRows(old).open()
    one = event("k")
    await write_as_before(db, one, event("l"))
    await (await former_store.claim(1)).settle({one.id: DISPATCHED})
    log: OutboxStore = OutboxLog(old)
    with pytest.raises(SettingsError, match="got OutboxLog, takes OutboxRows"):
        await log.open()
    await log.close(Deadline.never())
    await former_store.close(Deadline.never())


async def test_the_index_may_be_built_beforehand_without_making_writers_wait(db: Connection) -> None:
    await db.execute("CREATE INDEX CONCURRENTLY IF NOT EXISTS outbox_event_xid ON outbox_event (lane, xid, position)")
    await schema.apply(db)
    assert await differences(db) == []


async def opens(store: OutboxStore) -> None:
    try:
        await store.open()
    finally:
        await store.close(Deadline.never())


async def looks(dsn: str) -> None:
    async with operating(dsn):
        pass


TODAY: dict[str, Callable[[str], Any]] = {
    "OutboxRows": lambda dsn: opens(OutboxRows(dsn)),
    "OutboxLog": lambda dsn: opens(OutboxLog(dsn)),
    "operators": looks,
}


@pytest.mark.parametrize("what", TODAY)
async def test_this_version_on_the_tables_before_says_which_command_to_run(old: str, what: str) -> None:
    told = re.escape(f"its version is {FORMER}, this package needs {schema.latest_version()}")
    with pytest.raises(SchemaMissing, match=f"{told}.*Run: quiesce outbox schema apply"):
        await TODAY[what](old)


async def test_a_writer_of_this_version_works_on_the_tables_before(old: str, db: Connection) -> None:
    """So a service may be updated before its relay."""
    await write(db, event("k"))
    assert await db.fetchval("SELECT count(*) FROM outbox_event") == 1
