"""Statements of the log store that look up rows one by one: by an index, whatever the planner believes of the tables.

VACUUM and ANALYZE count what is alive while lanes are moved, page after page, and sometimes find one row of sixteen or
none. A planner who believes in a single row reads a whole index rather than look up one entry of it; where a forgotten
transaction holds xmin, that index has an entry for every former version.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from quiesce.postgres import lane_statements, log_statements
from quiesce.postgres.driver import Connection
from quiesce.postgres.log_connections import _PLANNER

STATEMENTS = {
    "move": log_statements.MOVE,
    "settle": log_statements.SETTLE,
    "lanes": log_statements.LANES,
    "due": log_statements.DUE,
    "parked": log_statements.PARKED,
    "own": lane_statements.OWN,
}
BELIEFS = {"nothing": 0.0, "one row": 1.0, "what is there": None, "no end": 1e9}
"""Rows of each table."""
LOOKED_UP_BY = {"outbox_lane": "outbox_lane_pkey", "outbox_event": "outbox_event_pkey"}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


async def fill(db: Connection) -> None:
    """Events, and former versions of lanes, so that each table has some hundred pages."""
    await db.execute(
        "INSERT INTO outbox_event (id, aggregate_id, topic, type, payload) "
        "SELECT gen_random_uuid(), 'key ' || n, 'orders', 'Placed', decode(repeat('7b', 200), 'hex') "
        "FROM generate_series(1, 5000) AS n"
    )
    await db.execute(
        "DO $$ BEGIN FOR n IN 1..300 LOOP "
        "UPDATE outbox_lane SET dispatched = dispatched, version = version + (n % 64 = 0)::int; END LOOP; END $$"
    )


@pytest.mark.parametrize("belief", BELIEFS)
async def test_a_row_is_looked_up_whatever_the_planner_believes(db: Connection, belief: str) -> None:
    await db.execute("BEGIN")
    try:
        await fill(db)
        for table in LOOKED_UP_BY:
            # The planner takes the number of rows a page from here, and that of pages from the table itself.
            await db.execute(
                f"UPDATE pg_class SET reltuples = coalesce($1, (SELECT count(*) FROM {table})), "
                f"relpages = pg_relation_size(oid) / 8192 WHERE oid = '{table}'::regclass",
                BELIEFS[belief],
            )
        scans = {name: await scans_of(db, name) for name in STATEMENTS}
    finally:
        await db.execute("ROLLBACK")
    assert all(scans.values()), "each reads one of the tables"
    for name, found in scans.items():
        for scan in found:
            assert scan.get("Index Name") == LOOKED_UP_BY[scan["Relation Name"]], (name, scan)
            # In an order that is wanted, and from a place on.
            assert "Index Cond" in scan, (name, scan)


async def scans_of(db: Connection, name: str) -> list[dict[str, Any]]:
    """How a statement reads the tables, planned as on the connection that it is sent on."""
    statement = STATEMENTS[name]
    await db.execute("SAVEPOINT planned")
    if name != "own":
        await db.execute("; ".join(f"SET LOCAL {setting} = {value}" for setting, value in _PLANNER.items()))
    nothing = ", ".join(["NULL"] * len(set(re.findall(r"\$\d+", statement))))
    await db.execute(f"PREPARE believed AS {statement}")
    try:
        told = json.loads(await db.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE believed ({nothing})"))
    finally:
        await db.execute("DEALLOCATE believed; ROLLBACK TO planned")
    found = []
    for node in nodes(told[0]["Plan"]):
        if node.get("Relation Name") in LOOKED_UP_BY and "Scan" in node["Node Type"]:
            # A bitmap is made by a node of its own, which tells the index.
            found.append({**node, **node["Plans"][0]} if node["Node Type"] == "Bitmap Heap Scan" else node)
    return found
