"""The row store on tables that were there before: the published contract, ids, letters, neighbours."""

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from uuid import NAMESPACE_URL, UUID, uuid5

import pytest
from outbox_table import event
from their_tables import SEEDS, SEEDS_SQL, SHAPES, SHOP, SHOP_SQL, Shape, prepare

from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.event import OutboxEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Retry
from quiesce.outbox.ports import OutboxStore
from quiesce.postgres import OutboxRows, connect, schema
from quiesce.postgres.driver import Connection
from quiesce.testing.contracts import outbox_store
from quiesce.testing.contracts.outbox_store import Check, State
from quiesce.testing.postgres_address import PostgresAddress


class MappedWorld:
    def __init__(self, dsn: str, db: Connection, shape: Shape, stack: AsyncExitStack) -> None:
        self._dsn = dsn
        self._db = db
        self._shape = shape
        self._stack = stack

    async def store(self) -> OutboxStore:
        store = OutboxRows(self._dsn, claims=3, table=self._shape.table)
        self._stack.push_async_callback(store.close, Deadline(time.monotonic() + 30.0))
        return await store.open()

    async def enqueue(self, *events: OutboxEvent) -> None:
        async with self._db.transaction():
            await self._shape.write(self._db, *events)

    async def enqueue_late(self, event: OutboxEvent) -> Callable[[], Awaitable[None]]:
        connection = await self._stack.enter_async_context(connect(self._dsn))
        transaction = connection.transaction()
        await transaction.start()
        await self._shape.write(connection, event)

        async def commit() -> None:
            await transaction.commit()

        return commit

    async def state(self, event_id: UUID) -> State:
        table = self._shape.table
        dead_at = f'"{table.dead_at}"' if table.dead_at else "NULL"
        row = await self._db.fetchrow(
            f'SELECT e."{table.dispatched_at}" AS dispatched_at, {dead_at} AS dead_at, parked.state AS parked '
            f"FROM {table.quoted} AS e LEFT JOIN {table.quoted_parked} AS parked "
            f'ON parked.event_id::text = e."{table.id}"::text '
            f'WHERE e."{table.id}"::text = $1',
            str(event_id),
        )
        assert row is not None
        assert row["dead_at"] is None or row["parked"] == "dead"
        if row["dispatched_at"] is not None:
            assert row["parked"] is None
            return "dispatched"
        states: dict[str | None, State] = {"dead": "dead", "retry": "retry", None: "waiting"}
        return states[row["parked"]]


@pytest.fixture(scope="module")
def prepared(request: pytest.FixtureRequest, postgres: PostgresAddress) -> Iterator[tuple[str, Shape]]:
    name = f"quiesce_theirs_{uuid.uuid4().hex[:12]}"
    dsn = postgres.create_database(name)
    shape = SHAPES[request.param]
    postgres.execute(shape.sql, name)
    for statement in shape.table.preparation().split(";\n"):
        if statement.strip():
            postgres.execute(statement, name)
    yield dsn, shape
    postgres.drop_database(name)


@pytest.fixture
async def world(prepared: tuple[str, Shape]) -> AsyncIterator[MappedWorld]:
    dsn, shape = prepared
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(connect(dsn))
        await db.execute(
            "SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await db.execute(f"TRUNCATE {shape.table.quoted}, {shape.table.quoted_parked}")
        yield MappedWorld(dsn, db, shape, stack)


CASES = [
    (shape, check)
    for shape in SHAPES
    for check in outbox_store.CHECKS
    # The seeds' table has no column for headers; the next test is about it.
    if (shape, check) != ("seeds", outbox_store.an_event_comes_as_it_was_written)
]


@pytest.mark.parametrize(
    ("prepared", "check"), CASES, indirect=["prepared"], ids=lambda one: getattr(one, "__name__", one)
)
async def test_the_contract(check: Check, world: MappedWorld) -> None:
    await check(world)


async def test_a_seeds_event_comes_as_it_was_written(bare: str) -> None:
    async with connect(bare) as db:
        await prepare(db, SEEDS_SQL, SEEDS)
        written = [event("k", b"\x00\xff"), event("tombstone", None), event("empty", b"")]
        await SHAPES["seeds"].write(db, *written)
        store = await OutboxRows(bare, table=SEEDS).open()
        claim = await store.claim(10)
        assert [
            (one.id, one.aggregate_id, one.topic, one.type, one.payload, dict(one.headers)) for one in claim.events
        ] == [(one.id, one.aggregate_id, "orders", "Placed", one.encoded_payload(), {}) for one in written]
        await claim.release()
        await store.close(Deadline.never())


@pytest.mark.parametrize("kind", ["json", "jsonb", "text", "bytea"])
async def test_a_table_of_numbers(bare: str, kind: str) -> None:
    async with connect(bare) as db:
        await prepare(db, SHOP_SQL.format(kind=kind), SHOP)
        await db.execute(
            "INSERT INTO shop_events (order_id, body, meta) VALUES "
            """(7, '{"n":1}', '{"a": "x", "n": 5, "gone": null, "id": "no", "deep": {"b": [1]}}'), """
            """(7, NULL, NULL), (-8, '"été"', '[1]')"""
            if kind != "bytea"
            else "INSERT INTO shop_events (order_id, body, meta) VALUES "
            """(7, convert_to('{"n":1}', 'UTF8'), '{"a": "x", "n": 5, "gone": null, "deep": {"b": [1]}}'), """
            """(7, NULL, '{}'), (-8, convert_to('"été"', 'UTF8'), '"text"')"""
        )
        store = await OutboxRows(bare, table=SHOP).open()
        claim = await store.claim(10)
        seen = [(one.position, one.aggregate_id, one.payload, dict(one.headers)) for one in claim.events]
        first = b'{"n": 1}' if kind == "jsonb" else b'{"n":1}'
        headers = {"a": "x", "n": "5", "deep": '{"b": [1]}'}
        assert seen == [(1, "7", first, headers), (2, "7", None, {}), (3, "-8", '"été"'.encode(), {})]
        assert {(one.topic, one.type) for one in claim.events} == {("or'd\\ers", "Changed")}
        # What the documentation says, so that anybody may compute it.
        namespace = uuid5(NAMESPACE_URL, f"quiesce:{bare.rpartition('/')[2]}/public/shop_events")
        since = await db.fetch("SELECT id || '/' || extract(epoch FROM created_at) FROM shop_events ORDER BY id")
        ids = [one.id for one in claim.events]
        assert ids == [uuid5(namespace, row[0]) for row in since]
        await claim.settle({ids[0]: Retry("no topic", 0.0), ids[2]: DISPATCHED})
        parked = await db.fetch("SELECT event_id, position, key, state, attempts FROM shop_events_parked")
        assert [tuple(row) for row in parked] == [(ids[0], 1, "7", "retry", 1)]
        await store.close(Deadline.never())
        again = await OutboxRows(bare, table=replace(SHOP, schema="public")).open()
        claim = await again.claim(10)
        assert [(one.id, one.attempts) for one in claim.events] == [(ids[0], 1), (ids[1], 0)]
        await claim.release()
        await again.close(Deadline.never())


async def test_without_created_at_the_number_alone_makes_the_id(bare: str) -> None:
    async with connect(bare) as db:
        await prepare(db, SHOP_SQL.format(kind="json"), SHOP)
        await db.execute("INSERT INTO shop_events (order_id, body) VALUES (1, '1')")
        store = await OutboxRows(bare, table=replace(SHOP, created_at=None)).open()
        (one,) = (await store.claim(10)).events
        assert one.id == uuid5(uuid5(NAMESPACE_URL, f"quiesce:{bare.rpartition('/')[2]}/public/shop_events"), "1")
        await store.close(Deadline.never())


async def test_a_dead_letter_that_is_written_while_another_claims_is_not_offered_again(bare: str) -> None:
    async with connect(bare) as db, connect(bare) as beside:
        await prepare(db, SEEDS_SQL, SEEDS)
        first, second = event("k"), event("k")
        await SHAPES["seeds"].write(db, first, second)
        store = await OutboxRows(bare, table=SEEDS).open()
        # As if it had been written after the statement's snapshot: hidden from the claim, seen by the second look.
        mapped = store._mapped
        assert mapped is not None
        hidden = mapped.statements.claim.replace("FROM \"outbox_event_parked\" WHERE state = 'dead'", "FROM nothing")
        assert hidden != mapped.statements.claim
        await beside.execute("CREATE TABLE nothing (position bigint)")
        store._statements = replace(store._statements, claim=hidden)
        await db.execute(
            "INSERT INTO outbox_event_parked (event_id, position, key, state, reason) "
            "SELECT id, position, aggregate_id, 'dead', 'too large' FROM outbox_event WHERE id = $1",
            first.id,
        )
        claim = await store.claim(10)
        assert [one.id for one in claim.events] == [second.id]
        await claim.release()
        await store.close(Deadline.never())


REDRIVE = "DELETE FROM outbox_event_parked WHERE state = 'dead' AND event_id = $1"
REDRIVE_MARKED = """
WITH letter AS (DELETE FROM outbox_event_parked WHERE state = 'dead' AND event_id = $1 RETURNING position)
UPDATE outbox_event AS e SET dead_at = NULL FROM letter WHERE e.position = letter.position
"""
PURGE = """
WITH letter AS (DELETE FROM outbox_event_parked WHERE state = 'dead' AND event_id = $1 RETURNING position)
DELETE FROM outbox_event AS e USING letter WHERE e.position = letter.position
"""


@pytest.mark.parametrize(("dead_at", "redrive"), [(None, REDRIVE), ("dead_at", REDRIVE_MARKED)])
async def test_dead_letters_by_hand_as_documented(bare: str, dead_at: str | None, redrive: str) -> None:
    table = replace(SEEDS, dead_at=dead_at)
    async with connect(bare) as db:
        await prepare(db, SEEDS_SQL, table)
        again, gone = event("k"), event("k")
        await SHAPES["seeds"].write(db, again, gone)
        store = await OutboxRows(bare, table=table).open()
        claim = await store.claim(10)
        await claim.settle({again.id: Dead("too large"), gone.id: Dead("too large")})
        assert not (await store.claim(10)).events
        await db.execute(redrive, again.id)
        await db.execute(PURGE, gone.id)
        claim = await store.claim(10)
        assert [one.id for one in claim.events] == [again.id]
        await claim.settle({again.id: DISPATCHED})
        assert await db.fetchval("SELECT count(*) FROM outbox_event_parked") == 0
        await store.close(Deadline.never())


async def test_the_seeds_relay_and_ours_hold_no_row_together(bare: str) -> None:
    lock = (
        "SELECT id, aggregate_id, topic, payload FROM outbox_event WHERE dispatched_at IS NULL "
        "ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED"
    )
    async with connect(bare) as db, connect(bare) as theirs:
        await prepare(db, SEEDS_SQL, SEEDS)
        first, *others = written = [event("a"), event("b"), event("a"), event("c")]
        for one in written:
            await SHAPES["seeds"].write(db, one)
        store = await OutboxRows(bare, table=SEEDS).open()
        transaction = theirs.transaction()
        await transaction.start()
        assert [row["id"] for row in await theirs.fetch(lock, 1)] == [first.id]
        claim = await store.claim(10)
        # Nor does ours pass an event of the same key that theirs has in its hands.
        assert [one.id for one in claim.events] == [others[0].id, others[2].id]
        assert not {row["id"] for row in await theirs.fetch(lock, 10)} & {one.id for one in claim.events}
        await theirs.execute("UPDATE outbox_event SET dispatched_at = now() WHERE id = $1", first.id)
        await transaction.commit()
        await claim.settle({one.id: DISPATCHED for one in claim.events})
        claim = await store.claim(10)
        assert [one.id for one in claim.events] == [others[1].id]
        assert not await theirs.fetch(lock, 10)
        await store.close(Deadline.never())


async def test_a_relay_needs_the_rights_that_are_documented_and_no_more(bare: str) -> None:
    role = f"relay_{bare.rpartition('/')[2]}"
    table = replace(SEEDS, dead_at="dead_at")
    async with connect(bare) as db:
        await prepare(db, SEEDS_SQL, table)
        await db.execute(
            f"CREATE ROLE {role} LOGIN; GRANT SELECT, UPDATE (dispatched_at, dead_at) ON outbox_event TO {role};"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_event_parked TO {role}"
        )
        try:
            first, second, third = written = [event("a"), event("b"), event("c")]
            await SHAPES["seeds"].write(db, *written)
            store = await OutboxRows(bare.replace("postgres@", f"{role}@"), table=table).open()
            claim = await store.claim(10)
            await claim.settle({first.id: DISPATCHED, second.id: Retry("no leader", 0.0), third.id: Dead("too large")})
            claim = await store.claim(10)
            assert (await claim.settle({second.id: DISPATCHED})).dispatched == 1
            await store.close(Deadline.never())
        finally:
            await db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_both_outboxes_live_in_one_schema(bare: str) -> None:
    async with connect(bare) as db:
        await schema.apply(db)
        await prepare(db, SHOP_SQL.format(kind="json"), SHOP)
        await db.execute("INSERT INTO shop_events (order_id, body) VALUES (1, '1')")
        await db.execute(
            "INSERT INTO outbox_event (id, aggregate_id, topic, type) VALUES (gen_random_uuid(), '1', 't', 'T')"
        )
        theirs, own = await OutboxRows(bare, table=SHOP).open(), await OutboxRows(bare).open()
        for store in (theirs, own):
            claim = await store.claim(10)
            (one,) = claim.events
            await claim.settle({one.id: Retry("no topic", 0.0)})
        for store, rest in ((theirs, 1), (own, 0)):
            claim = await store.claim(10)
            (one,) = claim.events
            assert one.attempts == 1
            await claim.settle({one.id: DISPATCHED})
            assert await db.fetchval("SELECT count(*) FROM outbox_parked") == rest
        assert await db.fetchval("SELECT count(*) FROM shop_events_parked") == 0
        for store in (theirs, own):
            await store.close(Deadline.never())
