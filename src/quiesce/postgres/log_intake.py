"""Filling a claim: what was set aside and is due, and what is new. Neither keeps the other waiting."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from quiesce.lifecycle.crash_points import reach
from quiesce.postgres import log_statements as sql
from quiesce.postgres.log_claim import LogClaim
from quiesce.postgres.log_connections import LogConnections
from quiesce.postgres.log_lane import LaneLog
from quiesce.postgres.log_owned import OwnedLogs
from quiesce.postgres.log_parked import Parked
from quiesce.postgres.log_reader import Pages, read, read_parked

logger = logging.getLogger("quiesce.postgres")

_PASSED_OVER = 500
"""How many events are read at once when events of a page had to be passed over, since their keys wait."""

DUE_SHARE = 4
"""What is due has at most one of so many parts of a claim, while anything is new."""

_READS = 8
"""Reads of one claim, at most."""


class LogIntake:
    """One claim is filled at a time. While it waits for the server, others are settled and given back, and lanes come
    and go; so what a read brings is looked at again before it is handed out.

    `refuse_closed` raises once the store is closed.
    """

    def __init__(
        self,
        name: str,
        connections: LogConnections,
        owned: OwnedLogs,
        max_bytes: int,
        refuse_closed: Callable[[], None],
    ) -> None:
        self._name = name
        self._connections = connections
        self._owned = owned
        self._max_bytes = max_bytes
        self._refuse_closed = refuse_closed
        # The lanes that the next read begins with, and the next look at what is due.
        self._first = self._first_due = 0
        # What is left of the shares of small claims.
        self._share = 0

    async def fill(self, claim: LogClaim, limit: int, unwanted: Iterable[int], early: Pages | None = None) -> None:
        """Takes up to `limit` events into the claim, none of the unwanted lanes. `early` was read already.

        What is due has a quarter of a claim, and all of it where nothing is new: with a topic in trouble, retries may
        come due as fast as they are refused.

        Where all that was read had to be passed over, that is recorded, so that it is not read again and again; and so
        is what was set aside and is not in the table any more.

        Raises:
            As `LogConnections.fetch`.
        """
        every = self._owned.working(unwanted)
        share, self._share = divmod(self._share + limit, DUE_SHARE)
        found = due = await self._take_due(claim, every, share)
        # What is set aside goes on where nothing more may be read.
        logs = self._rotated((log for log in every if self._owned.has_room(log)), self._first)
        passed_over = 0
        for _ in range(_READS):
            if found >= limit or not logs:
                break
            page = min(sql.MAX_PAGE, max(limit - found, _PASSED_OVER) if passed_over else limit - found)
            pages, early = early or await read(self._connections, logs, page, self._max_bytes), None
            self._refuse_closed()
            reach("outbox.claimed")
            handed, withheld = self._take(claim, pages, limit - found)
            found += handed
            passed_over += withheld
            if not pages.full or not withheld:
                break
            logs = [log for log in logs if self._owned.valid(log) and not log.blocked]
        if found == due and due < limit:
            await self._take_due(claim, every, limit - due)
        claim.fill()
        if not claim.events and (passed_over or claim.withdrawn):
            await claim.record_withheld()

    def hand_out(self, claim: LogClaim, early: Pages, limit: int) -> None:
        """The same at once, of what was read early, where nothing is set aside."""
        reach("outbox.claimed")
        self._take(claim, early, limit)
        claim.fill()

    def _take(self, claim: LogClaim, pages: Pages, room: int) -> tuple[int, int]:
        """How many events it handed out, and how many it passed over."""
        handed = withheld = 0
        for page in pages.pages:
            log = page.log
            if not self._owned.valid(log) or log.blocked or log.reading is not page.cursor:
                continue
            part = log.append(claim, page.events, pages.until, complete=page.complete, room=room - handed)
            if part is not None:
                claim.take_part(part)
                handed += len(part.events)
                withheld += len(part.withheld)
                self._first = log.lane + 1
        return handed, withheld

    async def _take_due(self, claim: LogClaim, logs: Sequence[LaneLog], limit: int) -> int:
        """Up to `limit` more that are due. Returns how many of these the claim has got by now."""
        now = time.monotonic()
        due: list[tuple[LaneLog, Parked]] = []
        for log in self._rotated(logs, self._first_due):
            if log.parked and len(due) < limit:
                due += [(log, row) for row in log.parked.due(now, limit - len(due))]
                self._first_due = log.lane + 1
        events = await read_parked(self._connections, due)
        self._refuse_closed()
        for log, row, event in events:
            if row.gone or not self._owned.valid(log) or log.parked.holds(row.key, row.position):
                continue
            if event is None:
                logger.error("%s: event %s was set aside and is not in the table any more", self._name, row.event_id)
                log.parked.remove(row)
                # Nobody else tells the table.
                claim.withdraws(log)
                continue
            claim.take_parked(log, row, event)
        return len(claim.parked)

    def _rotated(self, logs: Iterable[LaneLog], first: int) -> list[LaneLog]:
        """Beginning with another lane each time, so that a backlog in one does not starve the others."""
        return sorted(logs, key=lambda log: (log.lane < first, log.lane))
