"""Writing down where cursors stand, and what is set aside in their lanes."""

import asyncio
import json
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

from quiesce.errors import Unavailable
from quiesce.lifecycle.backoff import Backoff
from quiesce.postgres import log_statements as sql
from quiesce.postgres.log_claim import LogClaim
from quiesce.postgres.log_connections import LogConnections, OtherLife
from quiesce.postgres.log_lane import LaneLog
from quiesce.postgres.log_statements import array

logger = logging.getLogger("quiesce.postgres")

_AGAIN = Backoff(first=0.05, ceiling=1.0)
_STEP = 64
"""After how many records of a lane its row gets another key: see `lane_rows`."""


class LogRecorder:
    """A write that fails is tried again for `bound` seconds; after them nobody knows what is recorded."""

    def __init__(self, name: str, connections: LogConnections, bound: float) -> None:
        self._name = name
        self._connections = connections
        self._bound = bound

    async def record(self, lanes: Iterable[LaneLog], now: float, oldest: LogClaim | None) -> frozenset[int]:
        """Returns the lanes that are still ours. The same may be sent again and again: see `log_statements`. But not to
        a server that was started anew: what it has now, at the positions and numbers that were read, may be else.

        It asks along how long the first event of `oldest` has been there.
        """
        # All lock rows in this order.
        logs = sorted(lanes, key=lambda log: log.lane)
        if not logs:
            return frozenset()
        position, lane = (oldest.first if oldest is not None else None) or (None, None)
        changes = [log.parked.changes(now) for log in logs]
        steps = [int(log.moves % _STEP == _STEP - 1) for log in logs]
        values = [
            array(log.lane for log in logs),
            array(log.epoch for log in logs),
            array(log.recorded.seen for log in logs),
            array(log.recorded.last for log in logs),
            array(log.recorded.until for log in logs),
            array(log.recorded.at for log in logs),
            array(log.dispatched for log in logs),
            array(position if log.lane == lane else None for log in logs),
            array(log.version for log in logs),
            array(steps),
        ]
        write = [row for change in changes for row in change.write]
        delete = [event_id for change in changes for event_id in change.delete]
        statement = sql.MOVE
        if write or delete:
            statement = sql.SETTLE
            values += [json.dumps(write), array(delete)]
        asked_at, rows = await self._send(statement, values)
        for log, step in zip(logs, steps, strict=True):
            log.version += step
            log.moves += 1
        if oldest is not None:
            ages = [age for _, age in rows if age is not None]
            oldest.written_at = asked_at - ages[0] if ages else None
        return frozenset(row[0] for row in rows)

    async def _send(self, statement: str, values: list[str]) -> tuple[float, Sequence[Any]]:
        """When it was asked, and the answer."""
        until, tries, life = time.monotonic() + self._bound, 0, self._connections.life
        while True:
            try:
                asked_at = time.monotonic()
                return asked_at, await self._connections.fetch(statement, *values, life=life)
            except OtherLife:
                raise
            except Unavailable as error:
                tries += 1
                wait = _AGAIN.wait(tries)
                if time.monotonic() + wait > until:
                    raise Unavailable(
                        f"the database went away while a claim was recorded, which may have happened or not: {error}"
                    ) from error
                logger.debug("%s: recording a claim again: %s", self._name, error)
            await asyncio.sleep(wait)
