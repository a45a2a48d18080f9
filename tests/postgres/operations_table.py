"""Outboxes in the states that operators meet, made without a relay."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from uuid import UUID

from outbox_table import write

from quiesce.outbox.event import OutboxEvent
from quiesce.postgres import connect
from quiesce.postgres.driver import Connection
from quiesce.postgres.server_identity import server_identity

_EMPTY = """
SET lock_timeout = '5s';
TRUNCATE outbox_event, outbox_parked, outbox_audit, outbox_lane, outbox_control;
INSERT INTO outbox_lane (lane) SELECT generate_series(0, 15);
INSERT INTO outbox_control DEFAULT VALUES
"""
_END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@asynccontextmanager
async def as_if_new(dsn: str) -> AsyncIterator[str]:
    """Nothing in it, no store's mark on it, nobody connected; before and after."""
    async with connect(dsn) as connection:
        await connection.execute(_END_OTHERS)
        await connection.execute(_EMPTY)
    yield dsn
    async with connect(dsn) as connection:
        await connection.execute(_END_OTHERS)
        await connection.execute(_EMPTY)


async def belongs_to(db: Connection, kind: str) -> None:
    """As a store of this kind leaves it when it has opened the table for the first time."""
    now = await server_identity(db)
    await db.execute(
        "UPDATE outbox_control SET store = $1, system_identifier = $2, timeline = $3, database_oid = $4, "
        "table_oid = $5",
        kind,
        now.system_identifier,
        now.timeline,
        now.database_oid,
        now.table_oid,
    )


def events(count: int, key: str = "k", topic: str = "orders", payload: object = b"{}") -> list[OutboxEvent]:
    return [OutboxEvent(topic, f"{key}{n % 40}", "Placed", payload, {"secret": "s3"}) for n in range(count)]


async def written(db: Connection, count: int, key: str = "k", topic: str = "orders") -> list[UUID]:
    many = events(count, key, topic)
    await write(db, *many)
    return [one.id for one in many]


async def read_to_the_end(db: Connection) -> None:
    """The cursors of all lanes, as after every event was read and acked."""
    await db.execute(
        "UPDATE outbox_lane AS l SET seen = pg_current_snapshot(), until = NULL, at = NULL, moved_at = now(), "
        "last = greatest(last, (SELECT coalesce(max(position), 0) FROM outbox_event AS e WHERE e.lane = l.lane)), "
        "dispatched = (SELECT count(*) FROM outbox_event AS e WHERE e.lane = l.lane)"
    )


async def dispatched(db: Connection, ids: Iterable[UUID], seconds_ago: float = 0.0) -> None:
    """As the row store marks it."""
    await db.execute(
        "UPDATE outbox_event SET dispatched_at = now() - $2 * interval '1 second' WHERE id = ANY ($1)",
        list(ids),
        seconds_ago,
    )


async def park(
    db: Connection, ids: Iterable[UUID], state: str, *, mark: bool = False, seconds_ago: float = 0.0, reason: str = "no"
) -> None:
    """Sets events aside; with `mark` as the row store does it with dead ones."""
    await db.execute(
        "INSERT INTO outbox_parked (event_id, position, lane, key, state, reason, attempts, next_at, created_at) "
        "SELECT id, position, CASE WHEN $3 THEN NULL ELSE lane END, aggregate_id, $2, $5, 3, "
        "CASE WHEN $2 = 'retry' THEN now() END, now() - $4 * interval '1 second' "
        "FROM outbox_event WHERE id = ANY ($1)",
        list(ids),
        state,
        mark,
        seconds_ago,
        reason,
    )
    if mark and state == "dead":
        await db.execute("UPDATE outbox_event SET dead_at = now() WHERE id = ANY ($1)", list(ids))


async def states(db: Connection) -> dict[UUID, str]:
    return {row[0]: row[1] for row in await db.fetch("SELECT event_id, state FROM outbox_parked")}
