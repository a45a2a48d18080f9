"""Sending dead events again: their letters become retries that are due now.

The row store passes over dead events by a mark of their own, so the mark is taken back too. A redriven event has given
up its place: what came behind it under another policy than `hold_key` was published before.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator

from quiesce.errors import SettingsError
from quiesce.postgres import audit, waiting
from quiesce.postgres.dead_letters import MATCHES, PIECE, Selection
from quiesce.postgres.driver import AnyConnection
from quiesce.postgres.operating import short_transaction

# `attempts` counts anew: the reason for which it died was dealt with, or so the operator says.
_REDRIVE = f"""
WITH chosen AS MATERIALIZED (
    SELECT p.event_id, e.lane, e.position
    FROM outbox_parked AS p JOIN outbox_event AS e ON e.id = p.event_id
    WHERE {MATCHES} AND p.position > $8 AND p.created_at <= $9
    ORDER BY p.position LIMIT $7 FOR UPDATE OF p SKIP LOCKED
), letters AS (
    UPDATE outbox_parked AS p SET state = 'retry', next_at = statement_timestamp(), attempts = 0
    FROM chosen WHERE p.event_id = chosen.event_id
), marks AS (
    UPDATE outbox_event AS e SET dead_at = NULL
    FROM chosen WHERE e.lane = chosen.lane AND e.position = chosen.position AND e.dead_at IS NOT NULL
)
SELECT count(*) AS events, max(position) AS reached FROM chosen
"""  # noqa: S608 - a piece of our own
"""For the row store. `$7` is how many at most; only letters above the position `$8` that were there at `$9`, so that
one which dies again meanwhile is not redriven for ever."""

_REDRIVE_LOG = _REDRIVE.replace("e.dead_at IS NOT NULL", "false")
"""The log store never updates an event, and its operators need no right to."""


async def redrive(
    connection: AnyConnection,
    selection: Selection,
    *,
    said_by: str,
    rate: float | None = None,
    piece: int = PIECE,
) -> AsyncIterator[int]:
    """Redrives them all, in transactions of `piece` events at most. Yields how many, after each transaction.

    `rate` is events a second. The audit has one row, and says how far it came. It goes once over what was dead when
    it began.

    Raises:
        SettingsError: `rate` is not above 0.
    """
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise SettingsError(f"rate: got {rate:g}, takes events a second, more than 0")
    if rate is not None:
        piece = max(1, min(piece, math.floor(rate)))
    async with short_transaction(connection):
        kind = await waiting.store_of(connection)
        started = await connection.fetchval("SELECT statement_timestamp()")
        number = await audit.record(connection, "redrive", said_by, {**selection.as_detail(), "rate": rate})
    statement = _REDRIVE if kind == "row" else _REDRIVE_LOG
    began, total, reached = time.monotonic(), 0, 0
    while True:
        async with short_transaction(connection):
            done, highest = await connection.fetchrow(statement, *selection.values(), piece, reached, started) or (
                0,
                None,
            )
            await audit.add(connection, number, done)
        reached = highest or reached
        total += done
        if done:
            yield done
        if done < piece:
            return
        if rate is not None:
            await asyncio.sleep(max(0.0, began + total / rate - time.monotonic()))
