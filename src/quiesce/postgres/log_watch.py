"""Waiting at the server until lanes have something to claim."""

import asyncio
import time
from collections.abc import Sequence

import asyncpg

from quiesce.errors import Unavailable
from quiesce.outbox.cursor import Cursor, Snapshot
from quiesce.postgres.connections import CONNECTION_LOST
from quiesce.postgres.driver import Connection
from quiesce.postgres.event_rows import EventRow
from quiesce.postgres.log_connections import LogConnections
from quiesce.postgres.log_lane import LaneLog
from quiesce.postgres.log_reader import Pages, pages_of
from quiesce.postgres.log_statements import array

WATCH = """
SELECT position, id::text AS id, aggregate_id, topic, type, payload, headers, lane
FROM outbox_watch($1::text::smallint[], $2::text::pg_snapshot[], $3, $4, $5, $6, $7)
"""
"""See the migration that makes the function. The answer has the form of `log_statements.READ`."""

_MOST = 100
"""Events that a watch brings along, at most: more are read page by page."""

_MOST_BYTES = 256 * 1024

_ONE_STATEMENT = 0.25
"""Seconds that one statement waits, at most: it holds a snapshot meanwhile."""

_WITH_PARKED = 0.1
"""The same while something is set aside: how late it is seen, at most, that it is due."""

_ROUNDED = 0.0005
"""Seconds. `pg_sleep` sleeps whole milliseconds, rounded up, and one more where it is asked for whole ones."""

_GRACE = 5.0
"""Seconds that the server may take longer."""


class LogWatch:
    """One watch at a time. It brings along what it has found, so that a claim need not ask for it."""

    def __init__(self, name: str, connections: LogConnections, statement_timeout: float) -> None:
        self._name = name
        self._longest = min(_ONE_STATEMENT, statement_timeout / 2)
        self._connections = connections
        self._connection: Connection | None = None
        self._woken: asyncio.Event | None = None
        self.early: Pages | None = None
        """What the last watch has read, until somebody takes it."""
        # What was asked last, as text and by place: most of it is asked again.
        self._logs: Sequence[LaneLog] = []
        self._places: dict[int, int] = {}
        self._lanes = "{}"
        self._seen: list[Snapshot | None] = []
        self._seen_texts: list[str] = []

    def take_early(self) -> Pages | None:
        """What the last watch has read, once; None where every lane is to be looked at."""
        early, self.early = self.early, None
        return early

    def wake(self) -> None:
        """Ends the watch at once: what is watched may be something else by now."""
        self.early = None
        if self._woken is not None:
            self._woken.set()
        if self._connection is not None:
            # The server notices when the statement has ended. To ask it to cancel takes another connection.
            self._connection.terminate()

    async def wait(self, logs: Sequence[LaneLog], seconds: float, every: float, pause: float = 0.0) -> bool:
        """Waits until one of these lanes has something, or `wake`: True; or for `seconds`: False. See the port.

        Raises:
            Unavailable: the database cannot be reached now, or did not answer.
            As `LogConnections.take`.
        """
        self.early = None
        woken = self._woken = asyncio.Event()
        try:
            if logs:
                return await self._watch(logs, time.monotonic() + seconds, every, pause, woken)
            async with asyncio.timeout(seconds):
                return await woken.wait()
        except TimeoutError:
            return False
        finally:
            self._woken = None

    async def _watch(
        self, logs: Sequence[LaneLog], until: float, every: float, pause: float, woken: asyncio.Event
    ) -> bool:
        while (left := until - time.monotonic()) > 0 and not woken.is_set():
            cursors, parked = self._cursors(logs)
            if len(cursors) < len(logs):
                return True
            try:
                longest = min(self._longest, _WITH_PARKED) if parked else self._longest
                rows = await self._ask(min(left, longest), every, pause, woken)
                pause = every
            except Exception as error:
                if woken.is_set():
                    # Cut between two of its steps, asyncpg may say anything.
                    return True
                if not isinstance(error, CONNECTION_LOST):
                    raise
                raise Unavailable(f"{self._name}: the database went away while it was watched: {error}") from error
            if parked or rows is None:
                # What is set aside comes due by the clock; and a claim looks for it in all lanes.
                return True
            if rows:
                self._keep(logs, cursors, rows)
                return True
        return woken.is_set()

    def _keep(self, logs: Sequence[LaneLog], cursors: Sequence[Cursor], rows: Sequence[asyncpg.Record]) -> None:
        """What a claim that was made meanwhile has read, too, is passed over by the one that takes it.

        The cursors of lanes without events are left as they are: to move sixteen of them costs more than the event.
        """
        # Lane by lane, as the rows are.
        have = [self._places[lane] for lane in sorted({row["lane"] for row in rows[1:]})]
        if have:
            self.early = pages_of([logs[place] for place in have], [cursors[place] for place in have], rows, _MOST + 1)

    async def _ask(
        self, seconds: float, every: float, pause: float, woken: asyncio.Event
    ) -> Sequence[asyncpg.Record] | None:
        """None where there is no use in asking any more."""
        life = self._connections.life
        connection = self._connection = await self._connections.take()
        usable: Connection | None = None
        try:
            if woken.is_set() or life != self._connections.life:
                # Woken while there was no connection to cut, or a new one has shown that the server was started anew.
                usable = connection
                return None
            rows = await connection.fetch(
                WATCH,
                self._lanes,
                "{" + ",".join(self._seen_texts) + "}",
                seconds,
                max(every - _ROUNDED, 0.0001),
                pause,
                _MOST,
                _MOST_BYTES,
                timeout=seconds + _GRACE,
                record_class=EventRow,
            )
            usable = connection
            return rows
        finally:
            self._connection = None
            if usable is None:
                connection.terminate()
            self._connections.give_back(usable)

    def _cursors(self, logs: Sequence[LaneLog]) -> tuple[list[Cursor], int]:
        """Where they are read from, and how much is set aside in them. It ends before one that is not read out.

        One pass: all lanes are watched for each event of a trickle.
        """
        if logs != self._logs:
            self._logs = logs
            self._places = {log.lane: place for place, log in enumerate(logs)}
            self._lanes = array(log.lane for log in logs)
            self._seen, self._seen_texts = [None] * len(logs), [""] * len(logs)
        cursors, parked = [], 0
        for place, log in enumerate(logs):
            if not log.read_out:
                break
            cursor = log.reading
            cursors.append(cursor)
            parked += log.parked.count
            if cursor.seen is not self._seen[place]:
                self._seen[place], self._seen_texts[place] = cursor.seen, f'"{cursor.seen}"'
        return cursors, parked
