"""What another table lacks, or has in a way that would break a promise, is told when the store opens."""

from dataclasses import replace

import pytest
from their_tables import ODD, SEEDS, SHOP, SHOP_SQL, prepare

from quiesce.errors import SettingsError
from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import OutboxRows, OutboxTable, connect, schema

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
