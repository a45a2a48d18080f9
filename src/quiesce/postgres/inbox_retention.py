"""Deleting marks that are older than any record that may still come again.

Give it to a service: `s.every(3600, prune_inbox, db, 14 * 86_400.0, TopicRetention(kafka, "products"),
on_drain="cancel")`. Every replica may: whoever comes first does the work of that hour.
"""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from quiesce.errors import SettingsError
from quiesce.inbox.retention import TopicsKeep, answered, checked_age, short_of
from quiesce.inbox.schema_steps import schema_missing
from quiesce.postgres.driver import AnyConnection, Pool
from quiesce.postgres.operating import short_transaction

log = logging.getLogger("quiesce.postgres")

PIECE = 1_000
"""Marks deleted in one transaction."""

COUNT_TO = 100_000
"""A dry run counts no further: each one more costs a look at it."""

_ONE_AT_A_TIME = "SELECT pg_try_advisory_xact_lock(1903520115, 'inbox_entry'::regclass::oid::int)"
"""One pruner a table. The lock ends with the transaction, so it holds behind a pooler too."""

_LIMIT = "SELECT clock_timestamp() - $1::float8 * interval '1 second'"

# From where the last piece ended: what it deleted is still in the index while an old snapshot is open, and would be
# walked over again and again. By the rows' places: a join would be free to read the whole table.
PIECE_SQL = """
WITH page AS MATERIALIZED (
    SELECT ctid, handled_at FROM inbox_entry
    WHERE handled_at < $1 AND handled_at >= coalesce($2, '-infinity'::timestamptz)
    ORDER BY handled_at LIMIT $3
), gone AS (
    DELETE FROM inbox_entry WHERE ctid = ANY (ARRAY(SELECT ctid FROM page)) RETURNING 1
)
SELECT (SELECT count(*) FROM gone) AS gone, count(*) AS seen, max(handled_at) AS reached FROM page
"""
_COUNT = "SELECT count(*) FROM (SELECT FROM inbox_entry WHERE handled_at < $1 LIMIT $2) AS old"


@dataclass(frozen=True, slots=True)
class PrunedInbox:
    """What one call deleted. Not `finished`: its time was over, or another pruner was at it."""

    entries: int = 0
    finished: bool = False


async def prune_inbox(
    db: AnyConnection | Pool,
    older_than: float,
    topics_keep: TopicsKeep,
    *,
    piece: int = PIECE,
    bound: float = 10.0,
) -> PrunedInbox:
    """Deletes marks older than so many seconds, in pieces, for `bound` seconds at most.

    A mark must stay as long as its record may come again. So it is refused where a topic keeps its records longer than
    `older_than`. `topics_keep` says how long that is: `TopicRetention(...)`, which asks the brokers at each call; or
    seconds; or "unchecked", for whoever knows that nobody will read so far back.

    Ages are of the database's clock. One pruner works at a time; another one that comes meanwhile returns at once. A
    call that is cancelled leaves nothing half done. Takes asyncpg's pool or a connection without an open transaction.

    Raises:
        SettingsError: the age is none, or shorter than a topic's retention; or a topic cannot be asked.
        SchemaMissing: the table is not there. The message names the command that creates it.
        Unavailable: the brokers do not answer, so nothing was deleted.
    """
    if piece < 1:
        raise SettingsError(f"inbox: piece: got {piece}, takes 1 or more")
    deadline = time.monotonic() + bound
    kept = await answered(topics_keep)
    age = checked_age(older_than, kept)
    if (warning := short_of(age, kept)) is not None:
        log.warning("inbox: %s", warning)
    limit: datetime | None = None
    reached: datetime | None = None
    entries = 0
    while time.monotonic() < deadline or limit is None:
        async with _piece(db) as connection:
            if connection is None:
                return PrunedInbox(entries)
            if limit is None:
                limit = await connection.fetchval(_LIMIT, age)
            row = await connection.fetchrow(PIECE_SQL, limit, reached, piece)
        assert row is not None, "an aggregate always has a row"
        entries += row["gone"]
        reached = row["reached"]
        if row["seen"] < piece:
            return PrunedInbox(entries, finished=True)
    return PrunedInbox(entries)


async def prunable(connection: AnyConnection, older_than: float) -> tuple[int, bool]:
    """How many marks are older, counted up to `COUNT_TO`, and whether that is all of them."""
    async with short_transaction(connection, readonly=True):
        limit = await connection.fetchval(_LIMIT, older_than)
        found: int = await connection.fetchval(_COUNT, limit, COUNT_TO + 1)
    return min(found, COUNT_TO), found <= COUNT_TO


@asynccontextmanager
async def _piece(db: AnyConnection | Pool) -> AsyncIterator[AnyConnection | None]:
    """A short transaction that has the lock; None where another pruner has it. From the pool for a moment, so that
    the application may have the connection between two pieces."""
    try:
        if isinstance(db, asyncpg.Pool):
            async with db.acquire() as connection, short_transaction(connection):
                yield connection if await connection.fetchval(_ONE_AT_A_TIME) else None
        else:
            async with short_transaction(db):
                yield db if await db.fetchval(_ONE_AT_A_TIME) else None
    except asyncpg.UndefinedTableError as error:
        raise schema_missing(str(error)) from error
