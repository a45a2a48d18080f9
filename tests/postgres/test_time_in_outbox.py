"""How long an event was in the outbox, by the database's clock: what a settle tells of it."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from outbox_databases import OpenLog, OpenStore
from outbox_table import event, until, write
from their_tables import ODD, SHAPES, SHOP, SHOP_SQL, prepare

from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.event import OutboxEvent
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.outbox.ports import Claim
from quiesce.postgres import OutboxLog, OutboxRows, connect
from quiesce.postgres.driver import Connection
from quiesce.postgres.log_claim import LogClaim
from quiesce.postgres.log_statements import MOVE, array

SLACK = 30.0
"""Seconds that a test may be held up: the ages it writes are further apart."""


async def write_aged(db: Connection, *aged: tuple[OutboxEvent, float]) -> None:
    """Events whose transactions began so many seconds ago, in this order."""
    await write(db, *(one for one, _ in aged))
    for one, seconds in aged:
        await db.execute(
            "UPDATE outbox_event SET created_at = now() - $2 * interval '1 second' WHERE id = $1", one.id, seconds
        )


def acked(claim: Claim) -> dict[UUID, Outcome]:
    return {one.id: DISPATCHED for one in claim.events}


async def give(store: OutboxLog, count: int) -> LogClaim:
    """A claim of so many events."""
    found: list[LogClaim] = []

    async def has() -> bool:
        found.append(await store.claim(count))
        if len(found[-1].events) < count:
            await found[-1].release()
        return len(found[-1].events) == count

    await until(has)
    return found[-1]


def is_about(waited: float | None, seconds: float) -> bool:
    return waited is not None and seconds <= waited < seconds + SLACK


async def test_the_first_event_of_a_claim_tells_its_age(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    await write_aged(db, (event("a"), 300.0), (event("b"), 200.0), (event("a"), 100.0))
    claim = await give(store, 3)
    assert is_about((await claim.settle(acked(claim))).waited, 300.0)


async def test_this_machines_clock_does_not_count(
    db: Connection, open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 4_000_000_000.0)
    store = await open_log()
    await write_aged(db, (event(), 100.0))
    claim = await give(store, 1)
    assert is_about((await claim.settle(acked(claim))).waited, 100.0)


async def test_a_time_ahead_of_the_databases_clock_is_no_wait(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    await write_aged(db, (event(), -1000.0))
    claim = await give(store, 1)
    assert (await claim.settle(acked(claim))).waited == 0.0


async def test_only_what_was_dispatched_tells(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    refused, dead, acked_one = event("a"), event("b"), event("c")
    await write_aged(db, (refused, 300.0), (dead, 200.0), (acked_one, 100.0))
    claim = await give(store, 3)
    outcomes: dict[UUID, Outcome] = {
        refused.id: Retry("no topic", 0.0),
        dead.id: Dead("too large"),
        acked_one.id: DISPATCHED,
    }
    assert is_about((await claim.settle(outcomes)).waited, 100.0)
    # What was set aside has waited all the time.
    again = await give(store, 1)
    assert is_about((await again.settle(acked(again))).waited, 300.0)


async def test_where_nothing_was_dispatched_nothing_is_told(db: Connection, open_log: OpenLog) -> None:
    store = await open_log()
    await write_aged(db, (event(), 100.0))
    claim = await give(store, 1)
    assert (await claim.settle({one.id: Dead("too large") for one in claim.events})).waited is None


async def test_several_claims_written_at_once_ask_for_one_event(db: Connection, open_log: OpenLog) -> None:
    store = await open_log(claims=2)
    await write_aged(db, (event(), 300.0), (event(), 100.0))
    first, second = await give(store, 1), await give(store, 1)
    # The one behind waits for the one before it, so both are in one write.
    told = await asyncio.gather(second.settle(acked(second)), first.settle(acked(first)))
    assert told[0].waited is None
    assert is_about(told[1].waited, 300.0)


async def test_the_row_store_asks_now_and_then(db: Connection, open_store: OpenStore) -> None:
    store = await open_store()
    await write_aged(db, (event("a"), 300.0), (event("b"), 200.0), (event("c"), 100.0))
    waited = []
    for _ in range(3):
        claim = await store.claim(1)
        waited.append((await claim.settle(acked(claim))).waited)
    assert is_about(waited[0], 300.0)
    # A quarter of a second has not passed, or the second one tells its own age.
    assert waited[1] is None or is_about(waited[1], 200.0)
    store._time_at = 0.0
    await write_aged(db, (event("d"), 400.0))
    claim = await store.claim(1)
    assert is_about((await claim.settle(acked(claim))).waited, 400.0)


async def test_the_row_store_asks_for_what_was_dispatched(db: Connection, open_store: OpenStore) -> None:
    store = await open_store()
    refused, acked_one = event("a"), event("b")
    await write_aged(db, (refused, 300.0), (acked_one, 100.0))
    claim = await store.claim(2)
    settled = await claim.settle({refused.id: Retry("no topic", 60.0), acked_one.id: DISPATCHED})
    assert is_about(settled.waited, 100.0)


async def test_another_table_tells_where_its_times_have_a_zone(bare: str) -> None:
    async with connect(bare) as db:
        await prepare(db, SHOP_SQL.format(kind="text"), SHOP)
        await db.execute(
            "INSERT INTO shop_events (order_id, body, created_at) VALUES (1, 'x', now() - interval '300 s')"
        )
        await prepare(db, SHAPES["odd"].sql, ODD)
        await SHAPES["odd"].write(db, event())
        for table, tells in ((SHOP, True), (ODD, False)):
            store = await OutboxRows(bare, table=table).open()
            try:
                claim = await store.claim(10)
                assert len(claim.events) == 1
                waited = (await claim.settle(acked(claim))).waited
                assert is_about(waited, 300.0) if tells else waited is None
            finally:
                await store.close(Deadline(time.monotonic() + 2.0))


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
async def test_the_age_is_one_probe_of_the_primary_key(db: Connection, mode: str) -> None:
    await db.execute(
        "INSERT INTO outbox_event (id, aggregate_id, topic, type) "
        "SELECT gen_random_uuid(), 'key ' || n % 100, 'orders', 'Placed' FROM generate_series(1, 20000) AS n"
    )
    await db.execute("ANALYZE outbox_event")
    lane, position = await db.fetchrow("SELECT lane, max(position) FROM outbox_event GROUP BY lane LIMIT 1") or (0, 0)
    given: list[list[object]] = [[lane], [0], ["1:1:"], [position], [None], [None], [1], [position], [0], [0]]
    arguments = ", ".join(f"'{array(values)}'" for values in given)
    await db.execute(f"SET plan_cache_mode = {mode}; PREPARE moving ({', '.join(['text'] * len(given))}) AS {MOVE}")
    plan = await db.fetchval(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON) EXECUTE moving ({arguments})")
    (probe,) = [node for node in nodes(json.loads(plan)[0]["Plan"]) if node.get("Relation Name") == "outbox_event"]
    assert probe["Index Name"] == "outbox_event_pkey"
    assert probe["Actual Rows"] == probe["Actual Loops"] == 1


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)
