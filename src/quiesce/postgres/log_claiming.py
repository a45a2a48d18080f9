"""Making claims of the log store: one at a time and in order, or at once of what a watch has brought along."""

import asyncio
import time
from collections.abc import Callable

from quiesce.postgres.claim_slots import ClaimSlots
from quiesce.postgres.lane_statements import LANES
from quiesce.postgres.lanes import Lanes
from quiesce.postgres.log_claim import LogClaim
from quiesce.postgres.log_intake import LogIntake
from quiesce.postgres.log_reader import Pages
from quiesce.postgres.log_tending import LogTending
from quiesce.postgres.log_watch import LogWatch
from quiesce.postgres.log_writer import LogWriter

_EVERY_LANE = 1.0
"""Seconds between two claims that look for themselves, at least. Those between take what a watch has read."""


class LogClaiming:
    """Knows which claims are open, and there are never more of them than `slots`. `lanes` are those of now."""

    def __init__(
        self,
        slots: ClaimSlots,
        tending: LogTending,
        intake: LogIntake,
        writer: LogWriter,
        watch: LogWatch,
        lanes: Callable[[], Lanes],
    ) -> None:
        self._slots = slots
        self._tending = tending
        self._intake = intake
        self._writer = writer
        self._watch = watch
        self._lanes = lanes
        self._open: set[LogClaim] = set()
        # One claim at a time, so that the order of claims is the order of positions within a key.
        self._turn = asyncio.Lock()
        self._number = 0
        self._every_lane_at = 0.0

    def due(self, now: float) -> bool:
        """Whether it is time for a claim that looks for itself, in every lane."""
        return now >= self._every_lane_at

    async def claim(self, limit: int) -> LogClaim:
        """A claim of up to `limit` events, made in its turn. Cancelled, or without events, it is not open any more.

        Raises:
            Unavailable: all slots stayed taken.
            As `LogTending.tend` and `LogIntake.fill`.
        """
        await self._slots.take()
        claim = self._new_claim()
        handed_over = False
        try:
            async with self._turn:
                await self._tending.tend()
                if not self._tending.paused:
                    early = self._take_early()
                    unwanted = self._lanes().wants_rid_of
                    if early is not None:
                        unwanted |= early.others(range(LANES))
                    await self._intake.fill(claim, limit, unwanted, early)
            handed_over = bool(claim.events)
            return claim
        finally:
            # An empty one has ended already, and so has one that failed on its way.
            if not handed_over:
                claim.give_back()

    def claim_at_once(self, limit: int) -> LogClaim | None:
        """The same without a wait. None where there is nothing, or where lanes come and go, or anything is set aside:
        a claim sees to it."""
        early, now = self._watch.early, time.monotonic()
        if (
            early is None
            or self._turn.locked()
            or not self._tending.may_hand_out(now)
            or now >= self._every_lane_at + _EVERY_LANE
            or self._lanes().wants_rid_of
            or any(page.log.parked.count for page in early.pages)
            or not self._slots.take_at_once()
        ):
            return None
        claim = self._new_claim()
        try:
            self._intake.hand_out(claim, early, limit)
        finally:
            self._watch.take_early()
            if not claim.events:
                claim.give_back()
        return claim if claim.events else None

    def cut_off(self) -> int:
        """Gives back what is open; those events are free. Returns how many claims that were."""
        return sum(claim.give_back() for claim in list(self._open))

    def _new_claim(self) -> LogClaim:
        self._number += 1
        claim = LogClaim(self._number, self._writer.submit, self._note_end)
        self._open.add(claim)
        return claim

    def _take_early(self) -> Pages | None:
        """What the watch has read. From time to time every lane is looked at all the same."""
        early, now = self._watch.take_early(), time.monotonic()
        if early is None or now >= self._every_lane_at:
            self._every_lane_at = now + _EVERY_LANE
            return None
        return early

    def _note_end(self, claim: LogClaim) -> None:
        if claim in self._open:
            self._open.remove(claim)
            self._slots.give_back()
            self._writer.look()
            if not all(log.read_out for log in claim.logs.values()):
                # Something was given back.
                self._watch.wake()
