"""Looks an outbox and its database over. It changes nothing and needs no more rights than an operator has."""

from collections.abc import Awaitable, Callable

import asyncpg

from quiesce.outbox.checks import Check
from quiesce.postgres.doctor_horizon import horizon, prepared, slots
from quiesce.postgres.doctor_outbox import outbox
from quiesce.postgres.doctor_server import clock, defaults, pooler, replication, server, text
from quiesce.postgres.doctor_tables import tables, vacuum
from quiesce.postgres.driver import Connection
from quiesce.postgres.operating import short_transaction

_Look = Callable[[Connection], Awaitable[list[Check]]]

_SERVER: tuple[tuple[str, _Look], ...] = (
    ("server", server),
    ("encoding", text),
    ("defaults", defaults),
    ("clock", clock),
    ("replication", replication),
    ("held xmin", horizon),
    ("prepared transactions", prepared),
    ("replication slots", slots),
)
_OUTBOX: tuple[tuple[str, _Look], ...] = (("autovacuum", vacuum), ("outbox", outbox))

_OF_TABLES = {"schema", *(name for name, _ in _OUTBOX)}
_RIGHTS = "`quiesce outbox schema apply --grants operator=ROLE` prints what the role that asks needs"

_TOPICS = """
SELECT DISTINCT topic FROM (
    (SELECT e.topic FROM generate_series(0, 15) AS number CROSS JOIN LATERAL (
        SELECT topic FROM outbox_event AS e WHERE e.lane = number ORDER BY position DESC LIMIT 200
    ) AS e)
    UNION ALL
    (SELECT e.topic FROM outbox_parked AS p JOIN outbox_event AS e ON e.id = p.event_id LIMIT 1000)
) AS latest ORDER BY topic
"""


async def examine(db: Connection) -> list[Check]:
    """Every check, in the order in which they are best read."""
    # In transactions of its own: inside one a pooler cannot show what it does.
    checks = await _guarded("pooler", pooler, db)
    for name, look in _SERVER:
        checks += await _looked(name, look, db)
    there = await _looked("schema", tables, db)
    checks += there
    if not any(check.name == "schema" and check.verdict == "bad" for check in there):
        for name, look in _OUTBOX:
            checks += await _looked(name, look, db)
    return checks


async def recent_topics(db: Connection) -> list[str]:
    """The topics of the latest events of each lane, and of what was set aside."""
    async with short_transaction(db, readonly=True):
        return [row["topic"] for row in await db.fetch(_TOPICS)]


async def _looked(name: str, look: _Look, db: Connection) -> list[Check]:
    async def within() -> list[Check]:
        async with short_transaction(db, readonly=True):
            return await look(db)

    return await _guarded(name, lambda _: within(), db)


async def _guarded(name: str, look: _Look, db: Connection) -> list[Check]:
    """A look that is not allowed, or takes too long, is a finding and not the end."""
    try:
        return await look(db)
    except asyncpg.InsufficientPrivilegeError as error:
        advice = _RIGHTS if name in _OF_TABLES else "GRANT pg_monitor to the role that asks"
        return [Check(name, "warn", f"may not be looked at: {error}", advice)]
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        return [Check(name, "bad", f"a part of the tables is missing: {error}", "See: quiesce outbox schema validate")]
    except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError) as error:
        return [Check(name, "bad", f"no answer in time: {error}", "See what the server is busy with")]
