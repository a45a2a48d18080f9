"""A page costs a page: whatever was dispatched, however old the statistics, for custom and generic plans alike."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from outbox_table import event, write
from their_tables import SEEDS, SEEDS_SQL, prepare

from quiesce.lifecycle.deadline import Deadline
from quiesce.postgres import OutboxRows, connect
from quiesce.postgres import row_statements as sql
from quiesce.postgres.claim_limits import begin
from quiesce.postgres.driver import Connection

PAGE = 50
OWN = sql.statements(sql.OWN)
CLAIM_TYPES = "(bigint, text, bigint, bigint, bigint, bigint)"


async def fill(db: Connection, dispatched: int, waiting: int) -> None:
    for count, mark in ((dispatched, "now()"), (waiting, "NULL")):
        await db.execute(
            "INSERT INTO outbox_event (id, aggregate_id, topic, type, payload, dispatched_at) "
            f"SELECT gen_random_uuid(), 'key ' || n % 100, 'orders', 'Placed', '\\x7b7d', {mark} "
            "FROM generate_series(1, $1::int) AS n",
            count,
        )


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


async def explain(db: Connection, mode: str, types: str, statement: str, arguments: str) -> list[dict[str, Any]]:
    major = db.get_server_version().major
    await db.execute(begin(major, statement_timeout=10.0, claim_bound=20.0))
    await db.execute(f"SET LOCAL plan_cache_mode = {mode}")
    await db.execute(f"PREPARE explained {types} AS {statement}")
    try:
        text = await db.fetchval(
            f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON) EXECUTE explained ({arguments})"
        )
    finally:
        await db.execute("ROLLBACK; DEALLOCATE explained")
    return list(nodes(json.loads(text)[0]["Plan"]))


def on_the_table(plan: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [node for node in plan if node.get("Relation Name") == "outbox_event" and "Scan" in node["Node Type"]]


_PRETEND = "UPDATE pg_class SET reltuples = {tuples}, relpages = {pages} WHERE relname = 'outbox_event'"


async def pretend(db: Connection, belief: str) -> None:
    """5000 dispatched and 3000 waiting events, and a planner who believes something else."""
    await fill(db, dispatched=5000, waiting=0)
    if belief == "everything is dispatched":
        await db.execute("ANALYZE outbox_event")
    await fill(db, dispatched=0, waiting=3000)
    if belief == "there is nothing":
        await db.execute("ANALYZE outbox_event")
        await db.execute(_PRETEND.format(tuples=0, pages=1000))
    elif belief == "the backlog has no end":
        await db.execute("ANALYZE outbox_event")
        await db.execute(_PRETEND.format(tuples=1e9, pages=10))


BELIEFS = ["never analysed", "there is nothing", "everything is dispatched", "the backlog has no end"]


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("belief", BELIEFS)
async def test_a_claim_walks_its_page_and_no_more(db: Connection, mode: str, belief: str) -> None:
    await db.execute("ALTER TABLE outbox_event SET (autovacuum_enabled = off)")
    try:
        await pretend(db, belief)
        plan = await explain(db, mode, CLAIM_TYPES, OWN.claim, f"{PAGE}, '{{[1,1]}}', 99999, 0, 0, 10")
        scans = on_the_table(plan)
        assert {scan["Node Type"] for scan in scans} == {"Index Scan"}
        assert {scan["Index Name"] for scan in scans} == {"outbox_event_waiting"}
        walked = [scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0) for scan in scans]
        assert len(walked) == 3
        assert max(walked) <= PAGE, f"{walked} rows were walked for a page of {PAGE}"
        asked = [node for node in plan if node.get("Filter", "").count("SubPlan")]
        for node in asked:
            assert node["Filter"].count("hashed SubPlan") == node["Filter"].count("SubPlan"), node["Filter"]
        assert asked
    finally:
        await db.execute("ALTER TABLE outbox_event RESET (autovacuum_enabled)")


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", ["mark", "bury"])
async def test_a_mark_looks_up_its_rows(db: Connection, mode: str, name: str) -> None:
    await fill(db, dispatched=5000, waiting=3000)
    first = await db.fetchval("SELECT min(position) FROM outbox_event WHERE dispatched_at IS NULL")
    positions = "'{" + ",".join(str(first + n) for n in range(PAGE)) + "}'"
    statement = getattr(OWN, name)
    plan = await explain(db, mode, "(text)", statement, positions)
    (scan,) = on_the_table(plan)
    assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "outbox_event_waiting")
    assert scan["Actual Rows"] == PAGE


async def test_dead_letters_cost_a_claim_nothing(db: Connection) -> None:
    await fill(db, dispatched=0, waiting=2000)
    await db.execute("UPDATE outbox_event SET dead_at = now()")
    await db.execute(
        "INSERT INTO outbox_parked (event_id, position, key, state, reason) "
        "SELECT id, position, aggregate_id, 'dead', 'too large' FROM outbox_event"
    )
    await write(db, event("key 1"))
    await db.execute("VACUUM outbox_event")
    plan = await explain(db, "force_generic_plan", CLAIM_TYPES, OWN.claim, f"{PAGE}, '{{}}', 99999, 0, 0, 10")
    walked = [scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0) for scan in on_the_table(plan)]
    assert max(walked) == 1
    parked = [node for node in plan if node.get("Relation Name") == "outbox_parked"]
    assert [node["Node Type"] for node in parked] == ["Index Scan"]
    assert parked[0]["Actual Rows"] == 0


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("dead_at", [None, "dead_at"])
async def test_a_claim_on_another_table_walks_its_page_and_no_more(bare: str, mode: str, dead_at: str | None) -> None:
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
        types = CLAIM_TYPES
        plan = await explain(db, mode, types, statements.claim, "50, '{[1,1]}', 99999, 0, 0, 10")
        scans = on_the_table(plan)
        assert {scan["Index Name"] for scan in scans} == {"outbox_event_waiting"}
        assert max(scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0) for scan in scans) <= 50
        for node in plan:
            shown = node.get("Filter", "")
            assert shown.count("hashed SubPlan") == shown.count("SubPlan"), shown
        positions = "'{" + ",".join(str(5001 + n) for n in range(50)) + "}'"
        (scan,) = on_the_table(await explain(db, mode, "(text)", statements.mark, positions))
        assert (scan["Node Type"], scan["Actual Rows"]) == ("Index Scan", 50)
