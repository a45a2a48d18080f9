"""Tells the service's observers how the outbox stands, again and again: for metrics and alerts."""

import asyncio
import logging

import asyncpg

from quiesce.errors import SettingsError
from quiesce.lifecycle.ports import OnDrain, Stop
from quiesce.outbox.events import OutboxMeasured
from quiesce.postgres.connections import CONNECTION_LOST
from quiesce.postgres.driver import Pool
from quiesce.postgres.outbox_status import status

logger = logging.getLogger("quiesce.postgres")

COUNT_TO = 10_000


class OutboxWatch:
    """A worker: `s.run(OutboxWatch(db))`, with asyncpg's pool. One is enough; each replica may have one.

    It counts exactly up to 10,000 events, and estimates beyond. A look that fails, or takes longer than `timeout`
    seconds, is logged, and the next one comes `every` seconds later.
    """

    def __init__(self, db: Pool, *, name: str = "outbox", every: float = 15.0, timeout: float = 5.0) -> None:
        for setting, seconds in (("every", every), ("timeout", timeout)):
            if not 0 < seconds < 86_400:
                raise SettingsError(f"{name}: got {setting} {seconds}, takes seconds above 0 and below a day")
        self.name = f"{name}-watch"
        # Nothing is lost with a look that is torn.
        self.on_drain: OnDrain = "cancel"
        self._db = db
        self._outbox = name
        self._every = every
        self._timeout = timeout
        self._failed = False

    async def run(self, stop: Stop) -> None:
        async for _ in stop.every(self._every):
            try:
                async with asyncio.timeout(self._timeout):
                    measured = await self._look()
            except (asyncpg.PostgresError, *CONNECTION_LOST) as error:
                if not self._failed:
                    told = str(error) or type(error).__name__
                    logger.warning("%s: the outbox could not be looked at: %s", self.name, told)
                self._failed = True
            else:
                self._failed = False
                stop.tell(measured)

    async def _look(self) -> OutboxMeasured:
        async with self._db.acquire() as connection:
            now = await status(connection, count_to=COUNT_TO, timeout=self._timeout)
        return OutboxMeasured(
            self._outbox,
            now.waiting.events,
            now.waiting.exact,
            now.oldest or 0.0,
            now.parked["retry"],
            now.parked["held"],
            now.parked["dead"],
            now.paused is not None,
            sum(lane.owner is not None for lane in now.lanes) if now.store == "log" else None,
        )
