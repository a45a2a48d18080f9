"""What operators did: who, when, and to how many events. One row a command, in the transaction of what was done."""

import json
from collections.abc import Mapping

from quiesce.postgres.driver import AnyConnection

_RECORD = """
INSERT INTO outbox_audit (said_by, verb, detail, events) VALUES ($1, $2, $3::text::jsonb, $4) RETURNING id
"""
_ADD = "UPDATE outbox_audit SET events = events + $2 WHERE id = $1"


async def record(
    connection: AnyConnection, verb: str, said_by: str, detail: Mapping[str, object], events: int = 0
) -> int:
    """Writes the row of a command, in the caller's transaction; returns its id. The time is the database's."""
    shown = json.dumps({name: value for name, value in detail.items() if value not in (None, (), [])}, default=str)
    number: int = await connection.fetchval(_RECORD, said_by, verb, shown, events)
    return number


async def add(connection: AnyConnection, number: int, events: int) -> None:
    """Counts further events of a command that works in pieces: cut short, the row says how far it came."""
    await connection.execute(_ADD, number, events)
