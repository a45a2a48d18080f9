"""Who owns a lane: a lock that PostgreSQL drops when the owner's connection ends, and an epoch that fences."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from quiesce.errors import IntakeClosed, QuiesceError, SettingsError, Unavailable
from quiesce.lifecycle.deadline import Deadline
from quiesce.outbox.ports import Takeover
from quiesce.postgres.lane_keeper import SHARE_EVERY, LaneKeeper
from quiesce.postgres.lane_locks import LaneLocks
from quiesce.postgres.lane_records import LaneRecords, PooledConnector
from quiesce.postgres.store_settings import take_seconds

logger = logging.getLogger("quiesce.postgres")

LOOK = 0.1
"""Seconds between two looks for free lanes. Who has them all looks when its next sign of life is due."""

_FRESH = SHARE_EVERY + 2 * LOOK
_NONE: Mapping[int, int] = MappingProxyType({})
_SHORTEST_TAKEOVER = 1.0


class Lanes:
    """A member of those who share the outbox's lanes. It owns its share, 16 lanes divided by the members.

    A connection of its own holds the locks, so ownership ends with that connection and never by a clock. A task of
    its own takes lanes, counts members and gives signs of life, from the first `tend` until the connection is lost or
    `close`; so a caller that waits for a broker loses nothing, and one that is cancelled leaves nothing half done.

    `on_lost` is called, once a loss, with the lanes that were held when the connection ended against our will;
    `on_change` whenever `held` or `wants_rid_of` have changed; `on_takeover` when lanes that were another's are owned.
    An owner that has given no sign of life for `takeover_after` seconds while events of its lane waited is ended by
    whoever notices. With `busy`, which names the lanes that must not be given up yet, lanes beyond the share go by
    themselves; without it `let_go` is the caller's. All times are seconds.
    """

    def __init__(
        self,
        dsn: str,
        name: str = "outbox",
        *,
        connect_timeout: float = 5.0,
        statement_timeout: float = 10.0,
        takeover_after: float = 30.0,
        on_lost: Callable[[frozenset[int]], None],
        busy: Callable[[], Collection[int]] | None = None,
        on_change: Callable[[], None] = lambda: None,
        on_takeover: Callable[[Takeover], None] = lambda _: None,
    ) -> None:
        take_seconds(
            name, connect_timeout=connect_timeout, statement_timeout=statement_timeout, takeover_after=takeover_after
        )
        if takeover_after < _SHORTEST_TAKEOVER:
            raise SettingsError(
                f"{name}: got takeover_after {takeover_after}, takes {_SHORTEST_TAKEOVER:g} seconds or more, since an "
                f"owner gives a sign of life every {SHARE_EVERY:g} s"
            )
        self._dsn = dsn
        self._name = name
        self._connect_timeout = connect_timeout
        self._statement_timeout = statement_timeout
        self._takeover_after = takeover_after
        self._on_lost = on_lost
        self._busy = busy
        self._on_change = on_change
        self._on_takeover = on_takeover
        self._connector = PooledConnector()
        self._records = LaneRecords(
            self._connector, dsn, name, connect_timeout=connect_timeout, statement_timeout=statement_timeout
        )
        self._locks: LaneLocks | None = None
        self._keeper: LaneKeeper | None = None
        self._task: asyncio.Task[None] | None = None
        # When the last round that came to its end had begun, of the present connection.
        self._round_at = float("-inf")
        self._rounds: set[asyncio.Future[None]] = set()
        self._nudge = asyncio.Event()
        self._closing: Deadline | None = None
        self._silent = False

    @property
    def held(self) -> Mapping[int, int]:
        """The lanes that are owned now, each with its epoch. Empty as soon as the lock connection is lost. Another
        mapping whenever they change."""
        if self._keeper is None or self._locks is None or self._closing is not None or not self._locks.alive:
            return _NONE
        return self._keeper.held

    @property
    def wants_rid_of(self) -> frozenset[int]:
        """The held lanes that others are due: to be let go once what was read from them has ended."""
        return self._keeper.surplus if self._keeper is not None and self.held else frozenset()

    @property
    def fresh(self) -> bool:
        """Whether ownership was looked at a moment ago."""
        return self._locks is not None and self._locks.alive and time.monotonic() < self._round_at + _FRESH

    async def tend(self) -> None:
        """Makes sure that ownership is fresh. Returns at once when it was looked at a moment ago.

        After a wait (a process that was stopped, a blocked loop, a lost connection) it asks the server first.

        Raises:
            Unavailable: the server cannot be reached now, or did not answer in time.
            SettingsError: the DSN is wrong, the user lacks a right, or a pooler keeps no transaction together.
            SchemaMissing: the table is not there.
            IntakeClosed: `close` was called.
        """
        while self._closing is None:
            if self.fresh:
                return
            task = self._task
            if fresh := task is None or task.done():
                task = self._task = asyncio.create_task(self._keep(), name=f"lanes of {self._name}")
                task.add_done_callback(_note_end)
            try:
                await self._next_round(self._connect_timeout + 2 * self._statement_timeout)
                return
            except Unavailable:
                # A connection that died while nobody used it tells nothing about the server now.
                if fresh or not task.done():
                    raise
        raise IntakeClosed(f"{self._name} is closed")

    async def let_go(self, lanes: Iterable[int]) -> None:
        """Owns these lanes no more, at once; returns when they are free, or, at most, after `statement_timeout`.

        A lane that is not beyond the share is owned anew, with another epoch. It stays locked meanwhile.
        """
        if self._keeper is None or not self.held:
            return
        self._keeper.let_go(lanes)
        try:
            await self._next_round(self._statement_timeout)
        except QuiesceError as error:
            logger.debug("%s: the lanes are free since their connection has ended: %s", self._name, error)

    async def close(self, deadline: Deadline) -> int:
        """Owns nothing, at once, and frees the locks by the deadline. Safe to call twice.

        Returns 1 when the server did not answer the goodbye (its locks fall when it notices), else 0.
        """
        if self._closing is None:
            self._closing = deadline
            if self._task is not None:
                self._task.cancel()
        if self._task is None or self._task.done():
            return int(self._silent)
        try:
            await asyncio.wait({self._task}, timeout=deadline.remaining(time.monotonic()))
        finally:
            if not self._task.done():
                self._silent = True
                if self._locks is not None:
                    self._locks.cut()
                self._task.cancel()
        return int(self._silent)

    async def _next_round(self, timeout: float) -> None:
        """Waits for a round that begins from now on, or for the end of the task."""
        task = self._task
        assert task is not None
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rounds.add(end)
        self._nudge.set()
        try:
            await asyncio.wait({task, end}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._rounds.discard(end)
        if end.done():
            return
        if not task.done():
            raise Unavailable(f"{self._name}: the database did not answer about its lanes within {timeout} s")
        if task.cancelled():
            raise IntakeClosed(f"{self._name} is closed")
        error = task.exception()
        if error is not None:
            raise error

    async def _keep(self) -> None:
        """One life of the lock connection."""
        locks = self._locks = await LaneLocks.open(
            self._connector,
            self._dsn,
            self._name,
            connect_timeout=self._connect_timeout,
            statement_timeout=self._statement_timeout,
            gone=self._nudge.set,
        )
        keeper = self._keeper = LaneKeeper(
            locks, self._records, self._name, self._takeover_after, self._busy, self._on_takeover
        )
        try:
            while locks.alive:
                self._nudge.clear()
                waiting, began = set(self._rounds), time.monotonic()
                before = (keeper.held, keeper.surplus)
                await keeper.round()
                self._round_at = began
                if before != (keeper.held, keeper.surplus):
                    self._on_change()
                for end in waiting:
                    if not end.done():
                        end.set_result(None)
                await self._pause(SHARE_EVERY if keeper.has_all else LOOK)
            raise Unavailable(f"{self._name}: the connection that holds its lanes was cut")
        finally:
            await self._end(locks, keeper)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._nudge.wait()
        except TimeoutError:
            return

    async def _end(self, locks: LaneLocks, keeper: LaneKeeper) -> None:
        self._locks = self._keeper = None
        self._round_at = float("-inf")
        if self._closing is not None:
            self._silent = not await locks.leave(self._closing.remaining(time.monotonic()))
            return
        locks.cut()
        if keeper.held:
            logger.warning("%s: lost its %d lanes with the connection that held them", self._name, len(keeper.held))
            self._on_lost(frozenset(keeper.held))
            self._on_change()


def _note_end(task: asyncio.Task[None]) -> None:
    """Whoever waits gets the error too; but often nobody does."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, QuiesceError):
        logger.error("%s: ended unexpectedly", task.get_name(), exc_info=error)
