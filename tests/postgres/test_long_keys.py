"""Keys longer than a B-tree holds are set aside, retried, dead, redriven and deleted like others."""

import json
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from operations_table import park, states, written
from outbox_databases import OpenLog, OpenStore
from outbox_table import event, write

from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox import schema_steps
from quiesce.outbox.outcome import DISPATCHED, Dead, Outcome, Retry
from quiesce.outbox.ports import OutboxStore
from quiesce.postgres import OutboxRows, connect, schema
from quiesce.postgres.dead_letters import _DELETE, Selection, purge
from quiesce.postgres.driver import Connection
from quiesce.postgres.redrive import redrive
from quiesce.postgres.schema_differences import differences

# Random enough that the server cannot compress them to something short.
LONG = "".join(f"{n * 2654435761 % 2**32:08x}" for n in range(8_000))[:64_000]
OTHER = LONG[::-1]

HAS_HASH = "SELECT count(*) FROM pg_class WHERE relname = 'outbox_parked_of_key'"


@pytest.fixture(params=["log", "row"])
async def store(request: pytest.FixtureRequest, open_log: OpenLog, open_store: OpenStore) -> OutboxStore:
    return await (open_log() if request.param == "log" else open_store())


async def taken(store: OutboxStore, wanted: int) -> dict[UUID, str]:
    """Claims and acks until so many have come, within bounds; each id with its key."""
    found: dict[UUID, str] = {}
    end = time.monotonic() + 20.0
    while len(found) < wanted:
        assert time.monotonic() < end, f"{len(found)} of {wanted} came"
        claim = await store.claim(10)
        found |= {one.id: one.aggregate_id for one in claim.events}
        await claim.settle({one.id: DISPATCHED for one in claim.events})
    return found


async def test_they_are_set_aside_retried_dead_and_redriven(store: OutboxStore, db: Connection) -> None:
    retried, behind, dead, fine = event(LONG), event(LONG), event(OTHER), event("k")
    await write(db, retried, behind, dead, fine)
    claim = await store.claim(10)
    assert len(claim.events) == 4
    outcomes: dict[UUID, Outcome] = {retried.id: Retry("no leader", 0.0), dead.id: Dead("no"), fine.id: DISPATCHED}
    settled = await claim.settle(outcomes)
    assert (settled.dispatched, settled.dead) == (1, 1)
    keys = {row["event_id"]: row["key"] for row in await db.fetch("SELECT event_id, key FROM outbox_parked")}
    assert keys[retried.id] == LONG
    assert keys[dead.id] == OTHER
    assert await taken(store, 2) == {retried.id: LONG, behind.id: LONG}
    chosen = Selection(keys=(OTHER,))
    assert sum([count async for count in redrive(db, chosen, said_by="me")]) == 1
    assert await taken(store, 1) == {dead.id: OTHER}
    assert await db.fetchval("SELECT count(*) FROM outbox_parked") == 0


async def test_deleting_a_letter_frees_what_waits_behind_it(outbox: str, db: Connection) -> None:
    dead, held = event(LONG), event(LONG)
    await write(db, dead, held)
    await park(db, [dead.id], "dead")
    await park(db, [held.id], "held")
    assert await purge(db, Selection(keys=(LONG,)), said_by="me") == 1
    assert await states(db) == {held.id: "retry"}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


async def test_what_waits_behind_a_letter_is_found_by_an_index(outbox: str, db: Connection) -> None:
    """The one statement that looks for a key among all that is set aside."""
    ids = await written(db, 20_000)
    await db.execute(
        "INSERT INTO outbox_parked (event_id, position, lane, key, state, reason) "
        "SELECT id, position, lane, 'key ' || position, 'dead', 'no' FROM outbox_event"
    )
    await db.execute("ANALYZE outbox_parked; ANALYZE outbox_event")
    async with db.transaction():
        await db.execute(f"PREPARE d (uuid[], text[], text[], timestamptz, timestamptz, float8, integer) AS {_DELETE}")
        told = await db.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE d ('{{{ids[7]}}}', NULL, NULL, NULL, NULL, NULL, 500)")
        await db.execute("DEALLOCATE d")
    used = {node.get("Index Name") for node in nodes(json.loads(told)[0]["Plan"])}
    assert "outbox_parked_of_key" in used


@pytest.fixture
async def former(bare: str) -> str:
    """Tables with the B-tree that step 2 made once."""
    async with connect(bare) as db:
        for step in schema_steps.migrations()[:4]:
            await db.execute(step.sql)
        await db.execute("CREATE INDEX outbox_parked_key ON outbox_parked (key, position)")
    return bare


async def test_the_index_that_cannot_hold_them_is_replaced(former: str) -> None:
    async with connect(former) as db:
        await schema.apply(db)
        assert await db.fetchval(HAS_HASH) == 1
        assert await db.fetchval("SELECT to_regclass('outbox_parked_key')") is None
        assert await differences(db) == []
        await write(db, event(LONG))
        store = await OutboxRows(former).open()
        claim = await store.claim(1)
        await claim.settle({claim.events[0].id: Retry("no leader", 60.0)})
        await store.close(Deadline.never())
        assert await db.fetchval("SELECT key FROM outbox_parked") == LONG
        # A script with all steps may be run once more with such a key in the table.
        await db.execute(schema.show())
        assert await differences(db) == []


async def test_both_may_be_done_beforehand_without_making_relays_wait(former: str) -> None:
    async with connect(former) as db:
        await db.execute(
            "CREATE INDEX CONCURRENTLY IF NOT EXISTS outbox_parked_of_key ON outbox_parked USING hash (key)"
        )
        await db.execute("DROP INDEX CONCURRENTLY IF EXISTS outbox_parked_key")
        await write(db, event("k"))
        async with connect(former) as claims, claims.transaction():
            # As a claim does that is open for long.
            await claims.execute("SELECT FROM outbox_parked")
            await schema.apply(db, lock_timeout=2.0)
        assert await differences(db) == []
