"""A page of the log costs a page, however large the table: each branch by its index, for custom and generic plans."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from quiesce.postgres import log_statements as sql
from quiesce.postgres.driver import Connection
from quiesce.postgres.log_connections import _PLANNER
from quiesce.postgres.log_statements import array

PAGE, ROWS, TRANSACTIONS = 100, 400_000, 40
TYPES = "(text, text, text, text, text, text, bigint, bigint)"
PLANNER = ("enable_seqscan", "enable_bitmapscan", "jit")

pytestmark = pytest.mark.xdist_group("log_plans")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


async def fill(db: Connection, rows: int) -> None:
    """Keys `key 0` to `key 99` in turn, 200 bytes each, in so many transactions."""
    for _ in range(TRANSACTIONS):
        await db.execute(
            "INSERT INTO outbox_event (id, aggregate_id, topic, type, payload) "
            "SELECT gen_random_uuid(), 'key ' || n % 100, 'orders', 'Placed', decode(repeat('7b', 200), 'hex') "
            "FROM generate_series(1, $1::int) AS n",
            rows // TRANSACTIONS,
        )


async def transactions(db: Connection) -> list[int]:
    rows = await db.fetch("SELECT DISTINCT xid::text::bigint AS xid FROM outbox_event ORDER BY 1")
    return [row["xid"] for row in rows]


def asked(lanes: Sequence[int], last: int, xmax: int, running: Sequence[int]) -> list[str]:
    count = len(lanes)
    return [
        array(lanes),
        array([last] * count),
        array([0] * count),
        array([xmax] * count),
        array([array(running)] * count),
        array([None] * count),
    ]


async def explain(db: Connection, mode: str, settings: bool, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Every node that reads the table: its index, how many rows it walked, how often it ran."""
    await db.execute("BEGIN")
    if settings:
        for name in PLANNER:
            await db.execute(f"SET LOCAL {name} = {_PLANNER[name]}")
    await db.execute(f"SET LOCAL plan_cache_mode = {mode}; PREPARE explained {TYPES} AS {sql.READ}")
    try:
        given = ", ".join(f"'{text}'" for text in arguments)
        text = await db.fetchval(
            f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON) EXECUTE explained ({given}, {PAGE}, 9999999)"
        )
    finally:
        await db.execute("ROLLBACK; DEALLOCATE explained")
    return [node for node in nodes(json.loads(text)[0]["Plan"]) if touches(node)]


def touches(node: dict[str, Any]) -> bool:
    return node.get("Relation Name") == "outbox_event" or str(node.get("Index Name", "")).startswith("outbox_event")


def walked(scans: Sequence[dict[str, Any]]) -> float:
    return sum(
        float(scan["Actual Loops"] * (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)))
        for scan in scans
        if scan.get("Relation Name") == "outbox_event"
    )


def used(scans: Sequence[dict[str, Any]]) -> list[str]:
    """Indexes by branch: new, late by number, late by xmax."""
    return [scan["Index Name"] for scan in scans if "Index Name" in scan]


BRANCHES = ["outbox_event_pkey", "outbox_event_xid", "outbox_event_xid"]


async def check(db: Connection, mode: str, settings: bool) -> None:
    numbers = await transactions(db)
    top = await db.fetchval("SELECT max(position) FROM outbox_event")
    lanes = [row["lane"] for row in await db.fetch("SELECT DISTINCT lane FROM outbox_event ORDER BY lane")]
    after_all = numbers[-1] + 1

    backlog = await explain(db, mode, settings, asked(lanes, 0, 1, []))
    assert used(backlog) == BRANCHES
    assert walked(backlog) == PAGE, "a backlog costs a page of one lane"

    idle = await explain(db, mode, settings, asked(lanes, top, after_all, []))
    assert used(idle) == BRANCHES
    assert walked(idle) == 0, "lanes without anything new cost a probe each"

    running = await explain(db, mode, settings, asked(lanes[:1], top, after_all, [numbers[3], after_all + 5]))
    assert used(running) == BRANCHES
    # Ten thousand rows of one transaction, and of these one lane's: a page of them at most.
    assert walked(running) <= PAGE

    late = await explain(db, mode, settings, asked(lanes[:1], top, numbers[-1], []))
    assert used(late) == BRANCHES
    in_lane = await db.fetchval(
        "SELECT count(*) FROM outbox_event WHERE lane = $1 AND xid >= $2::text::xid8", lanes[0], str(numbers[-1])
    )
    assert walked(late) <= in_lane, "what was written since, and nothing from before"


MODES = ["force_custom_plan", "force_generic_plan"]


async def test_a_page_walks_its_rows_and_no_more_at_400_000(db: Connection) -> None:
    await db.execute("ALTER TABLE outbox_event SET (autovacuum_enabled = off)")
    try:
        await fill(db, ROWS)
        # Never analysed, as after a burst; then as the planner knows it best.
        for mode in MODES:
            await check(db, mode, settings=True)
        await db.execute("VACUUM (ANALYZE) outbox_event")
        for mode in MODES:
            await check(db, mode, settings=True)
            # Behind a pooler that takes no settings.
            await check(db, mode, settings=False)
    finally:
        await db.execute("ALTER TABLE outbox_event RESET (autovacuum_enabled)")


BELIEFS = {"there is nothing": (0, 1000), "there is no end": (1e9, 10)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("belief", BELIEFS)
async def test_a_planner_who_is_wrong_takes_the_same_way(db: Connection, mode: str, belief: str) -> None:
    tuples, pages = BELIEFS[belief]
    await db.execute("ALTER TABLE outbox_event SET (autovacuum_enabled = off)")
    try:
        await fill(db, 8000)
        await db.execute("ANALYZE outbox_event")
        await db.execute(f"UPDATE pg_class SET reltuples = {tuples}, relpages = {pages} WHERE relname = 'outbox_event'")
        await check(db, mode, settings=True)
    finally:
        await db.execute("ALTER TABLE outbox_event RESET (autovacuum_enabled); ANALYZE outbox_event")


@pytest.mark.parametrize("mode", MODES)
async def test_dead_letters_cost_a_new_owner_nothing(db: Connection, mode: str) -> None:
    await fill(db, 8000)
    await db.execute(
        "INSERT INTO outbox_parked (event_id, position, lane, key, state, reason) "
        "SELECT id, position, lane, aggregate_id, 'dead', 'too large' FROM outbox_event"
    )
    await db.execute("VACUUM (ANALYZE) outbox_parked")
    for statement, types, arguments in (
        (sql.PARKED, "(text, boolean, text)", "'{1,2,3}', false, '{}'"),
        (sql.HEADS, "(text)", "'{1,2,3}'"),
    ):
        await db.execute(f"BEGIN; SET LOCAL plan_cache_mode = {mode}; PREPARE explained {types} AS {statement}")
        try:
            text = await db.fetchval(
                f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON) EXECUTE explained ({arguments})"
            )
        finally:
            await db.execute("ROLLBACK; DEALLOCATE explained")
        scans = [node for node in nodes(json.loads(text)[0]["Plan"]) if node.get("Relation Name") == "outbox_parked"]
        walks = [scan["Actual Loops"] * (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) for scan in scans]
        assert sum(walks) == 0, scans
