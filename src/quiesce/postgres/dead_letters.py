"""Dead letters: which ones are meant, listing them, deleting them for good."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from quiesce.postgres import audit
from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.operating import short_transaction
from quiesce.postgres.peeking import Peeked, peeked

PIECE = 500
"""Dead letters a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters are meant: those that match all that is given; all of them where nothing is.

    `since` and `until` are about when an event was set aside, of the database's clock: at or after the one,
    before the other. `older_than` is in seconds and is about the same instant.
    """

    events: tuple[UUID, ...] = ()
    keys: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    older_than: float | None = None

    @property
    def everything(self) -> bool:
        return not any((self.events, self.keys, self.topics, self.since, self.until, self.older_than is not None))

    def as_detail(self) -> dict[str, object]:
        """For the audit."""
        return {
            "events": [str(one) for one in self.events],
            "keys": list(self.keys),
            "topics": list(self.topics),
            "since": self.since,
            "until": self.until,
            "older_than_seconds": self.older_than,
        }

    def values(self) -> tuple[Any, ...]:
        """For `MATCHES`."""
        return (
            list(self.events) or None,
            list(self.keys) or None,
            list(self.topics) or None,
            self.since,
            self.until,
            self.older_than,
        )


MATCHES = """p.state = 'dead'
    AND ($1::uuid[] IS NULL OR p.event_id = ANY ($1))
    AND ($2::text[] IS NULL OR p.key = ANY ($2))
    AND ($3::text[] IS NULL OR e.topic = ANY ($3))
    AND ($4::timestamptz IS NULL OR p.created_at >= $4)
    AND ($5::timestamptz IS NULL OR p.created_at < $5)
    AND ($6::float8 IS NULL OR p.created_at < statement_timestamp() - $6 * interval '1 second')"""
"""The dead letters `p`, with their events `e`, of a `Selection`. Somebody may have deleted an event by hand: its letter
is listed and can be purged, but not redriven."""

_COUNT = f"""
SELECT count(*) FROM outbox_parked AS p LEFT JOIN outbox_event AS e ON e.id = p.event_id WHERE {MATCHES}
"""  # noqa: S608 - a piece of our own

_LIST = f"""
SELECT p.event_id AS id, p.key, coalesce(e.lane, p.lane) AS lane, coalesce(e.topic, '(its event is gone)') AS topic,
    coalesce(e.type, '') AS type, e.created_at, octet_length(e.payload) AS size,
    CASE WHEN $8 THEN e.payload END AS payload, CASE WHEN $8 THEN e.headers::text END AS headers,
    p.state, p.attempts, p.next_at, p.created_at AS parked_at, p.reason
FROM outbox_parked AS p LEFT JOIN outbox_event AS e ON e.id = p.event_id
WHERE {MATCHES} ORDER BY p.position LIMIT $7
"""  # noqa: S608 - a piece of our own

# The event goes with its letter, in one transaction: the log store would take an event without a letter for dispatched.
# A key whose first parked event is one that waited behind the deleted letter is free: that event is due now, and
# its dispatch brings the next ones.
_DELETE = f"""
WITH chosen AS MATERIALIZED (
    SELECT p.event_id, p.key, e.lane, e.position
    FROM outbox_parked AS p LEFT JOIN outbox_event AS e ON e.id = p.event_id
    WHERE {MATCHES} ORDER BY p.position LIMIT $7 FOR UPDATE OF p SKIP LOCKED
), letters AS (
    DELETE FROM outbox_parked AS p USING chosen WHERE p.event_id = chosen.event_id
), events AS (
    DELETE FROM outbox_event AS e USING chosen WHERE e.lane = chosen.lane AND e.position = chosen.position
), freed AS (
    UPDATE outbox_parked AS p SET state = 'retry', next_at = statement_timestamp()
    WHERE p.state = 'held' AND p.event_id IN (
        SELECT DISTINCT ON (left_over.key) CASE WHEN left_over.state = 'held' THEN left_over.event_id END
        FROM outbox_parked AS left_over
        WHERE left_over.key IN (SELECT key FROM chosen) AND left_over.event_id NOT IN (SELECT event_id FROM chosen)
        ORDER BY left_over.key, left_over.position
    )
)
SELECT count(*) FROM chosen
"""  # noqa: S608 - a piece of our own


async def count(connection: AnyConnection, selection: Selection) -> int:
    """How many there are, those included whose event is gone."""
    async with short_transaction(connection, readonly=True):
        found: int = await connection.fetchval(_COUNT, *selection.values())
        return found


async def dead_letters(
    connection: AnyConnection, selection: Selection, *, limit: int = 20, payloads: bool = False
) -> Sequence[Peeked]:
    """The first `limit` of them, in the order in which their events were written."""
    async with short_transaction(connection, readonly=True):
        return [peeked(row) for row in await connection.fetch(_LIST, *selection.values(), limit, payloads)]


async def delete(connection: AnyConnection, selection: Selection, limit: int) -> int:
    """Deletes up to `limit` of them with their events, in the caller's transaction. They are never published then."""
    deleted: int = await connection.fetchval(_DELETE, *selection.values(), limit)
    return deleted


async def purge(
    connection: AnyConnection, selection: Selection, *, said_by: str, dry_run: bool = False, piece: int = PIECE
) -> int:
    """Deletes them all, in transactions of `piece` events, and says so in the audit. Returns how many.

    Cut short, what was deleted is deleted and the audit says how much that was.
    """
    if dry_run:
        return await count(connection, selection)
    number, total = None, 0
    while True:
        async with short_transaction(connection):
            deleted = await delete(connection, selection, piece)
            if number is None:
                number = await audit.record(connection, "purge", said_by, selection.as_detail(), deleted)
            else:
                await audit.add(connection, number, deleted)
        total += deleted
        if deleted < piece:
            return total
