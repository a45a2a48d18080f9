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
BELIEFS = {"nothing": (0, 7000), "one row": (1, 7000), "what is there": (16, 7000), "no end": (1e9, 10)}
TABLES = ("outbox_lane", "outbox_event")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


@pytest.mark.parametrize("belief", BELIEFS)
@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_row_is_looked_up_whatever_the_planner_believes(db: Connection, name: str, belief: str) -> None:
    tuples, pages = BELIEFS[belief]
    for setting, value in _PLANNER.items():
        await db.execute(f"SET {setting} = {value}")
    await db.execute("BEGIN")
    try:
        for table in TABLES:
            await db.execute(
                f"UPDATE pg_class SET reltuples = {tuples}, relpages = {pages} WHERE oid = '{table}'::regclass"
            )
        statement = STATEMENTS[name]
        nothing = ", ".join(["NULL"] * len(set(re.findall(r"\$\d+", statement))))
        await db.execute(f"PREPARE believed AS {statement}")
        told = json.loads(await db.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE believed ({nothing})"))
    finally:
        await db.execute("ROLLBACK; DEALLOCATE ALL")
    read = [node for node in nodes(told[0]["Plan"]) if node.get("Relation Name") in TABLES]
    scans = [node for node in read if "Scan" in node["Node Type"]]
    assert scans, "the tables were read"
    assert [node for node in scans if "Index Cond" not in node] == []
