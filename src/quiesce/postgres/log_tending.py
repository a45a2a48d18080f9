"""What comes before a claim of the log store: lanes come and go, and operators have their say."""

import logging
import time
from collections.abc import Callable, Sequence

from quiesce.postgres import log_statements as sql
from quiesce.postgres.lanes import Lanes
from quiesce.postgres.log_connections import LogConnections
from quiesce.postgres.log_lane import LaneLog
from quiesce.postgres.log_owned import OwnedLogs
from quiesce.postgres.log_writer import LogWriter

logger = logging.getLogger("quiesce.postgres")

_LOOK_EVERY = 1.0
"""Seconds between two looks at what operators may have done."""


class LogTending:
    """`lanes` are those of now. `patience`: seconds in which what was read from lanes that were lost may yet be
    recorded, before any are taken anew."""

    def __init__(
        self,
        name: str,
        connections: LogConnections,
        owned: OwnedLogs,
        writer: LogWriter,
        lanes: Callable[[], Lanes],
        patience: float,
    ) -> None:
        self._name = name
        self._connections = connections
        self._owned = owned
        self._writer = writer
        self._lanes = lanes
        self._patience = patience
        self._suspect: set[int] = set()
        self._lost_at = float("-inf")
        self._look_at = 0.0
        connections.on_new_life = self._begin_anew
        self.paused = False
        """Whether an operator has paused the outbox."""

    def give_up(self, logs: Sequence[LaneLog]) -> None:
        """Nobody knows what is recorded in these, or what still arrives, or somebody else has taken them: they are let
        go, and taken anew."""
        for why in {log.lost for log in logs}:
            lanes = ", ".join(str(log.lane) for log in logs if log.lost == why)
            logger.warning("%s: what was read from lane %s is given up and read again: %s", self._name, lanes, why)
        self._suspect.update(log.lane for log in logs if self._owned.owns(log))

    def _begin_anew(self) -> None:
        """A server that crashed may have forgotten what was read, and have other events at the same positions."""
        self.give_up(self._owned.lose("the database was started anew"))
        self._writer.look()

    def lanes_lost(self) -> None:
        """The connection that held them is gone."""
        self._lost_at = time.monotonic()

    def due(self, now: float) -> bool:
        """Whether it is time to look at what operators may have done."""
        return now >= self._look_at

    def may_hand_out(self, now: float) -> bool:
        """Whether a claim may do without tending first. A look that is due can wait for a moment without events."""
        return (
            not self.paused
            and not self._suspect
            and not self.due(now - _LOOK_EVERY)
            and self._lanes().fresh
            and self._owned.in_line
        )

    async def tend(self) -> None:
        """Brings lanes and logs in line with what is owned, and from time to time with what operators did.

        Raises:
            As `LogConnections.fetch`.
        """
        now = time.monotonic()
        if self._owned.unfinished() and now < self._lost_at + self._patience:
            # Lanes were lost and would be ours again at once; then what is still in flight could not be recorded. If
            # only the connection was lost it can be, and that shows when the server answers.
            await self._connections.fetch(sql.PAUSED)
            if self._owned.unfinished():
                return
        lanes = self._lanes()
        if self._suspect:
            suspect = frozenset(self._suspect)
            await lanes.let_go(suspect)
            self._suspect -= suspect
        await lanes.tend()
        self._suspect.update(await self._owned.adopt())
        if now >= self._look_at:
            await self._look()

    async def _look(self) -> None:
        async with self._writer.turn:
            # Not before: the wait for a write that hangs is no reason to look less often.
            now = time.monotonic()
            rows = await self._connections.fetch(sql.PAUSED)
            await self._owned.look()
        # Where much is set aside a look takes a while, and must not be most of what is done.
        self._look_at = now + max(_LOOK_EVERY, 5 * (time.monotonic() - now))
        if self.paused != rows[0][0]:
            self.paused = rows[0][0]
            logger.warning("%s: %s", self._name, "paused by an operator" if self.paused else "no longer paused")
