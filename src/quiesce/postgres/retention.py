"""Deleting dispatched events that are old enough, and dead letters that nobody wants any more.

Give it to a service: `s.every(60, prune, db, 7 * 86_400, on_drain="cancel")`. Every replica may: whoever comes
first does the work of that minute.
"""

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from quiesce.errors import SettingsError
from quiesce.postgres import dead_letters, waiting
from quiesce.postgres.driver import AnyConnection, Pool
from quiesce.postgres.lane_rows import newest
from quiesce.postgres.lane_statements import LANES
from quiesce.postgres.operating import short_transaction

PIECE = 1_000
"""Events looked at in one transaction."""

_ONE_AT_A_TIME = "SELECT pg_try_advisory_xact_lock(1903520115, 'outbox_event'::regclass::oid::int)"
"""One pruner a table. The lock ends with the transaction, so it holds behind a pooler too."""

# Both look at a page of one lane in the order of the primary key, and delete of it what may go. The first row of a page
# is found at once, and pages end where nothing old enough follows, so what must stay costs a walk and no more.
_PAGE = """
WITH page AS MATERIALIZED (
    SELECT e.* FROM (
        SELECT id, lane, position, xid, created_at, dispatched_at,
            statement_timestamp() - $4::float8 * interval '1 second' AS limit_at
        FROM outbox_event WHERE lane = $1 AND position > $2 {readable}
        ORDER BY position LIMIT $3
    ) AS e
), gone AS (
    DELETE FROM outbox_event AS e USING page
    WHERE e.lane = page.lane AND e.position = page.position AND {dispatched}
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone) AS gone, count(*) AS seen, max(position) AS reached,
    coalesce(bool_or(created_at < limit_at), false) AS more
FROM page
"""

ROW_PAGE = _PAGE.format(readable="", dispatched="page.dispatched_at < page.limit_at")

# Deciding rests on one snapshot. The cursor only moves on, and an event is parked in the transaction that moves the
# cursor over it: so what is at or below `last`, visible in `seen` and not parked has been acked, and stays so. Read
# under `until` it may have been too, but that is soon in `seen`.
LOG_PAGE = _PAGE.format(
    readable=f"""AND position <= (SELECT last FROM {newest("$1")} AS present)""",  # noqa: S608 - a piece of our own
    dispatched=f"""page.created_at < page.limit_at
        AND EXISTS (
            SELECT FROM {newest("$1")} AS l
            WHERE page.position <= l.last AND pg_visible_in_snapshot(page.xid, l.seen)
        )
        AND NOT EXISTS (SELECT FROM outbox_parked AS p WHERE p.event_id = page.id)""",  # noqa: S608
)


@dataclass(frozen=True, slots=True)
class Pruned:
    """What one call deleted. Not `finished`: its time was over, or another pruner was at it."""

    events: int = 0
    dead: int = 0
    finished: bool = False


async def prune(
    db: AnyConnection | Pool,
    older_than: float,
    dead_older_than: float | None = None,
    *,
    piece: int = PIECE,
    bound: float = 10.0,
) -> Pruned:
    """Deletes dispatched events older than so many seconds, in pieces, for `bound` seconds at most.

    Only what a broker has acked is ever deleted. Ages are of the database's clock. The row store counts from the
    dispatch. The log store records none for a single event and counts from the instant it was written. Dead letters
    stay, unless they were set aside more than `dead_older_than` seconds ago; then they go with their events, and are
    never published.

    One pruner works at a time; another one that comes meanwhile returns at once. A call that is cancelled leaves
    nothing half done. Takes asyncpg's pool or a connection without an open transaction.

    Raises:
        SettingsError: an age is below 0, or not a number.
    """
    for name, age in (("older_than", older_than), ("dead_older_than", dead_older_than or 0.0)):
        if not 0 <= age < 1e9:
            raise SettingsError(f"prune: {name}: got {age}, takes seconds, 0 or more")
    if piece < 1:
        raise SettingsError(f"prune: piece: got {piece}, takes 1 or more")
    deadline = time.monotonic() + bound
    events = dead = 0
    async with _connection(db) as connection:
        kind = await waiting.store_of(connection)
    statement = ROW_PAGE if kind == "row" else LOG_PAGE
    # Where the time of one call is short, each lane has its turn all the same.
    first = random.randrange(LANES)  # noqa: S311 - no secret
    for lane in (*range(first, LANES), *range(first)):
        reached, more = 0, True
        while more:
            if time.monotonic() >= deadline:
                return Pruned(events, dead)
            async with _piece(db) as connection:
                if connection is None:
                    return Pruned(events, dead)
                row = await connection.fetchrow(statement, lane, reached, piece, older_than)
            assert row is not None, "an aggregate always has a row"
            events += row["gone"]
            reached, more = row["reached"], row["more"] and row["seen"] == piece
    while dead_older_than is not None:
        if time.monotonic() >= deadline:
            return Pruned(events, dead)
        async with _piece(db) as connection:
            if connection is None:
                return Pruned(events, dead)
            selection = dead_letters.Selection(older_than=dead_older_than)
            deleted = await dead_letters.delete(connection, selection, piece)
        dead += deleted
        if deleted < piece:
            break
    return Pruned(events, dead, finished=True)


@asynccontextmanager
async def _piece(db: AnyConnection | Pool) -> AsyncIterator[AnyConnection | None]:
    """A short transaction that has the lock; None where another pruner has it."""
    async with _connection(db) as connection, short_transaction(connection):
        yield connection if await connection.fetchval(_ONE_AT_A_TIME) else None


@asynccontextmanager
async def _connection(db: AnyConnection | Pool) -> AsyncIterator[AnyConnection]:
    """From the pool for a moment, so that the application may have it between two pieces."""
    if isinstance(db, asyncpg.Pool):
        async with db.acquire() as connection:
            yield connection
    else:
        yield db
