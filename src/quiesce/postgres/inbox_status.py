"""How an inbox stands: how many marks, whose, how old, how large."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.operating import TIMEOUT, short_transaction
from quiesce.postgres.outbox_status import COUNT_TO, Count

MOST_CONSUMERS = 100
"""More than anybody has; a name that is made anew at each start would be no name."""

# The newest ones, where there are too many to look at all.
_CONSUMERS = """
SELECT consumer, count(*) AS marks FROM (SELECT consumer FROM inbox_entry ORDER BY handled_at DESC LIMIT $1) AS page
GROUP BY consumer ORDER BY consumer LIMIT $2
"""
_ALL = "SELECT count(*) FROM (SELECT FROM inbox_entry LIMIT $1) AS page"
_ESTIMATE = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = $1::text::regclass"
_FACTS = """
SELECT clock_timestamp() AS at, (SELECT min(handled_at) FROM inbox_entry) AS oldest,
    pg_total_relation_size('inbox_entry') AS bytes,
    (SELECT max(version) FROM quiesce_inbox_schema) AS version
"""


@dataclass(frozen=True, slots=True)
class InboxStatus:
    """`oldest` is the age, in seconds, of the oldest mark; None where there is none. `bytes`: with its indexes."""

    at: datetime
    """Of the database's clock."""
    version: int
    entries: Count
    oldest: float | None
    bytes: int
    consumers: Sequence[tuple[str, Count]]
    """By name. Estimated where the whole is: by the newest."""


async def inbox_status(connection: AnyConnection, *, count_to: int = COUNT_TO, timeout: float = TIMEOUT) -> InboxStatus:
    """Reads it in one transaction, within `timeout` seconds a statement. It locks nothing."""
    async with short_transaction(connection, readonly=True, seconds=timeout, isolation="repeatable_read"):
        facts = await connection.fetchrow(_FACTS)
        assert facts is not None, "it always has a row"
        found: int = await connection.fetchval(_ALL, count_to + 1)
        entries = Count(found)
        if found > count_to:
            estimate: int = await connection.fetchval(_ESTIMATE, "inbox_entry")
            entries = Count(max(estimate, count_to), exact=False)
        rows = await connection.fetch(_CONSUMERS, count_to, MOST_CONSUMERS)
        share = 1.0 if entries.exact else entries.events / count_to
        consumers = [(row["consumer"], Count(round(row["marks"] * share), entries.exact)) for row in rows]
    oldest = facts["oldest"]
    return InboxStatus(
        at=facts["at"],
        version=facts["version"],
        entries=entries,
        oldest=None if oldest is None else (facts["at"] - oldest).total_seconds(),
        bytes=facts["bytes"],
        consumers=consumers,
    )
