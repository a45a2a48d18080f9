"""Looking at events without touching them. Payloads and headers are read only where they are asked for."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from quiesce.postgres import waiting as sql
from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.operating import short_transaction


@dataclass(frozen=True, slots=True)
class Peeked:
    """An event that waits, or is dead. `state` is waiting, retry, held or dead."""

    id: UUID
    key: str
    lane: int | None
    topic: str
    type: str
    created_at: datetime | None
    """None where somebody has deleted the event by hand, and left its dead letter."""
    state: str
    size: int | None
    """Bytes of the payload; None for a tombstone."""
    attempts: int | None
    next_at: datetime | None
    parked_at: datetime | None
    """Since when it is set aside."""
    reason: str | None
    payload: bytes | None
    headers: str | None
    """As JSON. Like the payload, None where it was not asked for."""


def peeked(row: Any) -> Peeked:
    """From a row of one of the statements."""
    return Peeked(
        row["id"],
        row["key"],
        row["lane"],
        row["topic"],
        row["type"],
        row["created_at"],
        row["state"],
        row["size"],
        row["attempts"],
        row["next_at"],
        row["parked_at"],
        row["reason"],
        row["payload"],
        row["headers"],
    )


async def peek(
    connection: AnyConnection,
    *,
    key: str | None = None,
    topic: str | None = None,
    lane: int | None = None,
    limit: int = 20,
    payloads: bool = False,
) -> list[Peeked]:
    """The first events that wait, in the order in which they were written."""
    async with short_transaction(connection, readonly=True):
        kind = await sql.store_of(connection)
        statement = sql.ROW_PEEK if kind == "row" else sql.LOG_PEEK
        return [peeked(row) for row in await connection.fetch(statement, key, topic, lane, limit, payloads)]
