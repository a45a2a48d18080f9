"""One member's dealings while its lock connection lives: what it takes, what it gives up, whom it ends."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from quiesce.errors import QuiesceError, Unavailable
from quiesce.outbox.ports import Takeover
from quiesce.postgres import lane_statements as sql
from quiesce.postgres.lane_locks import LaneLocks
from quiesce.postgres.lane_records import LaneRecords
from quiesce.postgres.lane_waits import LaneWaits

logger = logging.getLogger("quiesce.postgres")

SHARE_EVERY = 0.5
"""Seconds between two counts of the members. Each is also the sign of life on the lock connection."""

_ALIVE_WITHIN = 3.0
_RECORD_AGAIN = 1.0
_SILENCE_LOOKS = 4
_SILENCE_EVERY = 1.0
_SILENT = 1.5
"""Seconds without a sign of life, of which there are two a second, after which the lanes of an owner count as waiting,
though they are not free yet."""

_Result = TypeVar("_Result")


class LaneKeeper:
    """Brings what it has locked in line with its share, one `round` at a time.

    A lane is owned, and stands in `held`, from the moment its epoch was raised until it is let go, which is before its
    lock falls. What it locks beyond its share are the lanes it locked last: only those can be given up.
    """

    def __init__(
        self,
        locks: LaneLocks,
        records: LaneRecords,
        name: str,
        takeover_after: float,
        busy: Callable[[], Collection[int]] | None,
        took_over: Callable[[Takeover], None],
    ) -> None:
        self._locks = locks
        self._records = records
        self._name = name
        self._takeover_after = takeover_after
        self._busy = busy
        self._took_over = took_over
        self._waits = LaneWaits()
        self._share = 0
        self._share_at = float("-inf")
        self._record_at = float("-inf")
        self._silence_at = float("-inf")
        # Members begin to look at different lanes, so that they seldom want the same one.
        turn = random.randrange(sql.LANES)  # noqa: S311 - any order is right
        self._order = [(turn + step) % sql.LANES for step in range(sql.LANES)]
        self.held: Mapping[int, int] = {}
        """The lanes that are owned, with their epochs. Another mapping whenever they change."""

    @property
    def surplus(self) -> frozenset[int]:
        """The owned lanes that others are due."""
        return frozenset(self._locks.lanes[self._share :]) & self.held.keys()

    @property
    def has_all(self) -> bool:
        """Whether it owns every lane, and nobody else is due any."""
        return len(self.held) == self._share == sql.LANES

    def let_go(self, lanes: Iterable[int]) -> None:
        """Owns these lanes no more. The next round unlocks those beyond the share, and owns the others anew."""
        gone = frozenset(lanes)
        if gone & self.held.keys():
            self.held = {lane: epoch for lane, epoch in self.held.items() if lane not in gone}

    async def round(self) -> None:
        """Looks once at everything that is due.

        Raises:
            Unavailable: the lock connection is lost.
            SettingsError, SchemaMissing: see `LaneLocks` and `LaneRecords`.
        """
        before = self.held.keys()
        if time.monotonic() >= self._share_at + SHARE_EVERY:
            await self._look()
        await self._give_up()
        if time.monotonic() >= self._record_at:
            await self._take()
            await self._own()
        await self._watch()
        if before != self.held.keys():
            owned = ", ".join(map(str, sorted(self.held))) or "none"
            logger.info("%s: owns %d of %d lanes: %s", self._name, len(self.held), sql.LANES, owned)

    async def _look(self) -> None:
        self._share_at = time.monotonic()
        self._share = await self._locks.share(_ALIVE_WITHIN)

    async def _give_up(self) -> None:
        if self._busy is not None:
            busy = self._busy()
            for lane in reversed(self._locks.lanes[self._share :]):
                if lane in busy and lane in self.held:
                    break
                self.let_go((lane,))
        count = 0
        for lane in reversed(self._locks.lanes[self._share :]):
            if lane in self.held:
                break
            count += 1
        if count:
            # Whoever they are for may have them and be gone again before the next look.
            self._waits.others_have(self._locks.lanes[-count:], time.monotonic())
        await self._locks.drop(count)

    async def _take(self) -> None:
        while len(locked := self._locks.lanes) < sql.LANES:
            asked_at = time.monotonic()
            if await self._locks.take(self._order) is None:
                self._waits.others_have(set(self._order).difference(locked), asked_at)
                return
            # A free lane beyond the share: somebody may have left.
            if len(locked) >= self._share:
                await self._look()
                if len(locked) >= self._share:
                    await self._locks.drop(1)
                    return

    async def _own(self) -> None:
        due = [lane for lane in self._locks.lanes[: self._share] if lane not in self.held]
        if not due:
            return
        try:
            epochs = await self._beside(self._records.own(self._locks.badge, due))
        except Unavailable as error:
            # Others may be luckier. What was locked is of no use to us.
            self._record_at = time.monotonic() + _RECORD_AGAIN
            logger.warning("%s; again in %g s", error, _RECORD_AGAIN)
            await self._drop_unowned()
            return
        if self._locks.alive:
            self.held = {**self.held, **epochs}
            await self._note_takeover(epochs)

    async def _note_takeover(self, lanes: Collection[int]) -> None:
        now = time.monotonic()
        # Who has been silent for long and still has lanes is not the one that these were of.
        ended = self._waits.silent_since is not None and await self._locks.silence(_SILENT) < _SILENT
        takeover = self._waits.owned(lanes, now, silent_one_ended=ended)
        if takeover is not None:
            self._took_over(takeover)

    async def _drop_unowned(self) -> None:
        count = 0
        for lane in reversed(self._locks.lanes):
            if lane in self.held:
                break
            count += 1
        await self._locks.drop(count)

    async def _watch(self) -> None:
        if len(self._locks.lanes) == sql.LANES or time.monotonic() < self._silence_at:
            return
        now = time.monotonic()
        self._silence_at = now + min(_SILENCE_EVERY, self._takeover_after / _SILENCE_LOOKS)
        silence = await self._locks.silence(self._takeover_after)
        self._waits.heard(now - silence if silence >= min(_SILENT, self._takeover_after) else None)
        if silence < self._takeover_after:
            return
        try:
            ended = await self._beside(self._records.end_frozen(self._takeover_after))
        except QuiesceError as error:
            logger.warning("%s: an owner gives no sign of life, and cannot be ended: %s", self._name, error)
            return
        if ended:
            logger.warning(
                "%s: ended the session of an owner of %d lanes that gave no sign of life for %g s while events waited",
                self._name,
                ended,
                self._takeover_after,
            )

    async def _beside(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Waits for what may take long, and gives signs of life meanwhile."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=SHARE_EVERY)
                if not task.done():
                    await self._look()
            return task.result()
        finally:
            # It ends at once: what it waits for is the server. One that does not is left to its own limits.
            task.cancel()
            await asyncio.wait({task}, timeout=SHARE_EVERY)
            if task.done() and not task.cancelled():
                task.exception()
