"""The row store on tables that were there before: the published contract, and what is refused."""

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from uuid import NAMESPACE_URL, UUID, uuid5

import pytest
from outbox_table import event
from test_row_plans import explain, on_the_table
from their_tables import ODD, SEEDS, SEEDS_SQL, SHAPES, Shape

from quiesce.errors import SettingsError
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.event import OutboxEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Retry
from quiesce.outbox.ports import OutboxStore
from quiesce.postgres import Constant, OutboxRows, OutboxTable, connect, schema
from quiesce.postgres.driver import Connection
from quiesce.testing.contracts import outbox_store
from quiesce.testing.contracts.outbox_store import Check, State
from quiesce.testing.postgres_address import PostgresAddress

SHOP = OutboxTable(
    name="shop_events",
    id="id",
    position="id",
    aggregate_id="order_id",
    topic=Constant("or'd\\ers"),
    type=Constant("Changed"),
    payload="body",
    headers="meta",
    created_at="created_at",
)
SHOP_SQL = """
CREATE TABLE shop_events (
    id bigserial PRIMARY KEY, order_id integer NOT NULL, body {kind}, meta jsonb,
    created_at timestamptz DEFAULT now(), dispatched_at timestamptz
);
"""


async def prepare(connection: Connection, sql: str, table: OutboxTable) -> None:
    await connection.execute(sql)
    # CONCURRENTLY takes a statement of its own.
    for statement in table.preparation().split(";\n"):
        if statement.strip():
            await connection.execute(statement)


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


@pytest.fixture(scope="module", params=list(SHAPES))
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


@pytest.mark.parametrize("check", outbox_store.CHECKS, ids=lambda check: check.__name__)
async def test_the_contract(check: Check, world: MappedWorld, prepared: tuple[str, Shape]) -> None:
    if prepared[1].table is SEEDS and check is outbox_store.an_event_comes_as_it_was_written:
        pytest.skip("the seeds' table has no column for headers; the next test is about it")
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
        store._statements = store._statements.__class__(
            hidden, *(getattr(store._statements, name) for name in ("survey", "buried", "mark", "bury", "park"))
        )
        await db.execute(
            "INSERT INTO outbox_event_parked (event_id, position, key, state, reason) "
            "SELECT id, position, aggregate_id, 'dead', 'too large' FROM outbox_event WHERE id = $1",
            first.id,
        )
        claim = await store.claim(10)
        assert [one.id for one in claim.events] == [second.id]
        await claim.release()
        await store.close(Deadline.never())


async def test_redriving_by_hand_as_documented(bare: str) -> None:
    async with connect(bare) as db:
        await prepare(db, SEEDS_SQL, SEEDS)
        written = event("k")
        await SHAPES["seeds"].write(db, written)
        store = await OutboxRows(bare, table=SEEDS).open()
        claim = await store.claim(10)
        await claim.settle({written.id: Dead("too large")})
        assert not (await store.claim(10)).events
        await db.execute("DELETE FROM outbox_event_parked WHERE state = 'dead' AND event_id = $1", written.id)
        claim = await store.claim(10)
        assert [one.id for one in claim.events] == [written.id]
        await claim.settle({written.id: DISPATCHED})
        await store.close(Deadline.never())


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


REFUSED = [
    ("DROP TABLE shop_events", SHOP, "takes one that exists"),
    ("ALTER TABLE shop_events RENAME TO x; CREATE VIEW shop_events AS TABLE x", SHOP, "takes a plain table"),
    ("DROP TABLE shop_events_parked", SHOP, 'there is no table "shop_events_parked"; OutboxTable.preparation'),
    ("ALTER TABLE shop_events_parked DROP COLUMN reason", SHOP, "has no reason"),
    ("ALTER TABLE shop_events_parked DROP CONSTRAINT shop_events_parked_pkey", SHOP, "is not unique"),
    ("ALTER TABLE shop_events DROP COLUMN body", SHOP, 'payload: there is no column "body"'),
    ("", replace(SHOP, position="seq"), 'position: there is no column "seq"; OutboxTable.preparation'),
    ("", replace(SHOP, position="created_at"), "says when it began and not when it had its turn"),
    ("", replace(SHOP, position="order_id"), "which no sequence gives out"),
    ("ALTER SEQUENCE shop_events_id_seq CACHE 20", SHOP, "CACHE 20 INCREMENT BY 1, takes CACHE 1"),
    ("ALTER SEQUENCE shop_events_id_seq INCREMENT -1", SHOP, "sessions that hoard"),
    ("ALTER SEQUENCE shop_events_id_seq CYCLE", SHOP, "CYCLE"),
    ("ALTER TABLE shop_events ALTER order_id DROP NOT NULL", SHOP, "may be NULL, takes a column that is NOT NULL"),
    ("ALTER TABLE shop_events ALTER order_id TYPE float", SHOP, "aggregate_id: got"),
    ("ALTER TABLE shop_events ALTER meta TYPE json", SHOP, "headers: got \"meta\" json.*takes jsonb"),
    ("ALTER TABLE shop_events ALTER body TYPE int USING 1", SHOP, "takes bytea, text, json or jsonb"),
    ("ALTER TABLE shop_events ALTER dispatched_at TYPE bool USING false", SHOP, "takes a timestamp"),
    ("UPDATE shop_events SET dispatched_at = now(); ALTER TABLE shop_events ALTER dispatched_at SET NOT NULL", SHOP,
     "may be NULL: it waits then"),
    ("ALTER TABLE shop_events DROP CONSTRAINT shop_events_pkey; DROP INDEX shop_events_waiting", SHOP,
     "no unique index.*no index on the events that wait"),
    ("ALTER TABLE shop_events ADD other uuid NOT NULL DEFAULT gen_random_uuid()", replace(SHOP, id="other"),
     '"other": has no unique index of its own'),
    ("DROP INDEX shop_events_waiting", SHOP, "no index on the events that wait"),
    ("DROP INDEX shop_events_waiting; CREATE INDEX ON shop_events (id) WHERE dispatched_at IS NOT NULL", SHOP,
     "no index on the events that wait"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "table", "told"), REFUSED, ids=range(len(REFUSED)))
async def test_what_would_break_a_promise_is_refused(bare: str, change: str, table: OutboxTable, told: str) -> None:
    async with connect(bare) as db:
        await prepare(db, SHOP_SQL.format(kind="json"), SHOP)
        await db.execute(change or "SELECT 1")
    store = OutboxRows(bare, table=table)
    try:
        with pytest.raises(SettingsError, match=told):
            await store.open()
        # Nor does it begin without having been opened.
        with pytest.raises(SettingsError, match=told):
            await store.claim(1)
    finally:
        await store.close(Deadline.never())


async def test_our_own_table_is_not_another_one(bare: str) -> None:
    async with connect(bare) as db:
        await schema.apply(db)
    store = OutboxRows(bare, table=replace(SEEDS, type="type", headers="headers"))
    with pytest.raises(SettingsError, match="it is quiesce's own"):
        await store.open()
    await store.close(Deadline.never())


async def test_a_table_that_changes_meanwhile_is_told(bare: str) -> None:
    async with connect(bare) as db:
        await prepare(db, SHOP_SQL.format(kind="json"), SHOP)
        store = await OutboxRows(bare, table=SHOP).open()
        await db.execute("ALTER TABLE shop_events RENAME body TO content")
        with pytest.raises(SettingsError, match="was changed meanwhile"):
            await store.claim(1)
        await store.close(Deadline.never())


@pytest.mark.parametrize("part", ["name", "id", "position", "aggregate_id", "topic", "type", "parked"])
@pytest.mark.parametrize("text", ["", "a\0b", 7])
def test_a_name_that_is_none_is_refused(part: str, text: object) -> None:
    with pytest.raises(SettingsError, match=f"OutboxTable {part}: got"):
        replace(SEEDS, **{part: text})  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("dead_at", [None, "dead_at"])
async def test_a_claim_walks_its_page_and_no_more(bare: str, mode: str, dead_at: str | None) -> None:
    table = replace(SEEDS, dead_at=dead_at)
    async with connect(bare) as db:
        await prepare(db, SEEDS_SQL, table)
        for count, mark in ((5000, "now()"), (3000, "NULL")):
            await db.execute(
                "INSERT INTO outbox_event (id, aggregate_id, topic, payload, dispatched_at) SELECT gen_random_uuid(), "
                f"'key ' || n % 100, 'orders', '\\x7b7d', {mark} FROM generate_series(1, $1::int) AS n",
                count,
            )
        store = await OutboxRows(bare, table=table).open()
        statements = store._statements
        await store.close(Deadline.never())
        types = "(bigint, text, bigint, bigint)"
        plan = await explain(db, mode, types, statements.claim, "50, '{1}', 99999, 0")
        scans = on_the_table(plan)
        assert {scan["Index Name"] for scan in scans} == {"outbox_event_waiting"}
        assert max(scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0) for scan in scans) <= 50
        for node in plan:
            shown = node.get("Filter", "")
            assert shown.count("hashed SubPlan") == shown.count("SubPlan"), shown
        positions = "'{" + ",".join(str(5001 + n) for n in range(50)) + "}'"
        (scan,) = on_the_table(await explain(db, mode, "(text)", statements.mark, positions))
        assert (scan["Node Type"], scan["Actual Rows"]) == ("Index Scan", 50)


async def test_long_names_stay_apart(bare: str) -> None:
    long = "é" * 31
    table = replace(ODD, name=long, schema=None, parked=None, id="id", position="id", headers=None, dead_at=None)
    table = replace(table, aggregate_id="k", topic="k", type="k", payload="k", created_at=None, dispatched_at="d")
    table = replace(table, parked="b" * 63)
    async with connect(bare) as db:
        sql = f'CREATE TABLE "{long}" (id bigserial PRIMARY KEY, k text NOT NULL, d timestamptz)'
        await prepare(db, sql, table)
        store = await OutboxRows(bare, table=table).open()
        await store.close(Deadline.never())
