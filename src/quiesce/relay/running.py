"""One run of the relay: the loop that waits, from the first claim to the last mark."""

import asyncio
import logging

from quiesce.errors import QuiesceError, Unavailable
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Stop
from quiesce.outbox.ports import LetsGo, OutboxStore, Publisher
from quiesce.relay.claiming import Claiming
from quiesce.relay.flights import Flights
from quiesce.relay.outages import Outage
from quiesce.relay.patience import reserve
from quiesce.relay.progress import Progress
from quiesce.relay.settings import RelaySettings
from quiesce.relay.waits import Waits, aborted

log = logging.getLogger("quiesce.relay")

REACH_BOUND = 2.0
"""Seconds a broker has to answer in for an outage to be over."""

ABORT_BOUND = 0.8
"""Seconds to give up in when the relay is cancelled."""

WATCH_ENDS_WITHIN = 0.2
"""Seconds that a watch may take to end: it is no work in hand."""

LET_GO_BOUND = 1.0
"""Seconds that a store may take to let go of its lanes."""

MAX_FAULTS = 5
"""Unexpected errors in a row, without a settled claim between them, that end the relay."""

FAULT_BACKOFF = Backoff(first=0.5, ceiling=10.0)


class Running:
    """Claims while it may, watches what is in flight, and brings it home when told to stop."""

    def __init__(
        self, settings: RelaySettings, store: OutboxStore, publisher: Publisher, stop: Stop, progress: Progress
    ) -> None:
        self._settings = settings
        self._store = store
        self._publisher = publisher
        self._stop = stop
        self._progress = progress
        self._waits = Waits(stop)
        self._flights = Flights(settings, publisher, stop, self._waits, progress)
        self._broker = Outage(settings.name, "broker", stop, progress)
        self._claiming = Claiming(settings, store, stop, self._waits, self._flights, progress)
        self._nudged = False
        self._faults = 0

    def nudge(self) -> None:
        """There is something to claim. From any thread."""
        self._nudged = True
        self._waits.wake_from_any_thread()

    async def run(self) -> None:
        async with self._waits:
            try:
                while not self._stop.requested:
                    try:
                        await self._move()
                    except asyncio.CancelledError as error:
                        if aborted():
                            raise
                        await self._mend(error)
                    except Exception as error:  # noqa: BLE001 - `_mend` logs it, and raises it after too many
                        await self._mend(error)
                await self._claiming.end(min(WATCH_ENDS_WITHIN, 0.1 * self._stop.remaining()))
                await self._bring_home()
                await self._let_go()
            except asyncio.CancelledError:
                await self._abort()
                raise
            finally:
                await self._claiming.end(WATCH_ENDS_WITHIN)

    async def _move(self) -> None:
        """Claims and publishes until a stop. Raises what nobody expected."""
        while not self._stop.requested:
            self._waits.look()
            self._take_stock()
            now = self._waits.now()
            stalled_at = look_at = self._flights.stalled_at()
            if self._flights.count:
                # One that was just launched is handed over in a moment, and may then wait for so long.
                look_at = min(stalled_at, now + self._settings.publish_bound)
            if self._flights.broken:
                await self._begin_anew()
            elif now >= stalled_at:
                await self._sit_out(f"no answer for {self._settings.publish_bound:g} s")
            elif now < self._claiming.next_at:
                self._flights.quiet = not self._faults and self._progress.outage is None
                try:
                    await self._waits.idle(min(self._claiming.next_at, look_at) - now)
                finally:
                    self._flights.quiet = False
            elif not (limit := self._claiming.room()):
                # A flight that lands wakes it.
                self._flights.may_answer_late(False)
                await self._waits.idle(look_at - now)
            else:
                await self._claiming.claim(limit)

    def _take_stock(self) -> None:
        if self._flights.take_settled():
            self._faults = 0
            self._broker.works()
        failure = self._flights.take_failure()
        if failure is not None:
            raise failure
        if self._nudged:
            self._nudged = False
            self._claiming.hurry()
        self._claiming.take_news()

    async def _begin_anew(self) -> None:
        """A producer lost answers, or sends nothing more behind an event that was refused: everything is given back,
        and claimed again. As long as the broker answers this is no outage."""
        wait = self._broker.stumbled()
        unanswered = await self._give_up("answers are missing")
        if self._stop.requested:
            self._abandon(unanswered)
        elif await self._stop.sleep(wait) and not await self._reachable():
            await self._sit_out("it cannot be reached")

    async def _give_up(self, why: str) -> int:
        """Everything is given back, so that it waits to be claimed at once."""
        self._claiming.now_due()
        return await self._flights.give_up(why, self._stop.remaining())

    async def _sit_out(self, why: str) -> None:
        """An outage of the broker: gives everything back and claims nothing until it answers."""
        wait = self._broker.failed(self._waits.now(), why)
        unanswered = await self._give_up(why)
        if self._stop.requested:
            self._abandon(unanswered)
        while await self._stop.sleep(wait):
            if await self._reachable():
                self._broker.answered(self._waits.now())
                return
            wait = self._broker.failed(self._waits.now(), "it cannot be reached")

    async def _reachable(self) -> bool:
        try:
            async with self._waits.at_most(REACH_BOUND * 1.1, after_stop=lambda: 0.0):
                return await self._publisher.reachable(Deadline(self._waits.now() + REACH_BOUND))
        except (TimeoutError, Unavailable):
            return False

    async def _mend(self, error: Exception | asyncio.CancelledError) -> None:
        """An unexpected error: a bug of ours, of an adapter, of a driver. A relay that died of it would
        leave the whole queue standing, so it begins anew, loudly; but not for ever."""
        self._faults += 1
        self._progress.faults += 1
        final = isinstance(error, QuiesceError) and not error.retryable
        hopeless = final or self._faults >= MAX_FAULTS
        log.error(
            "%s: unexpected error (%d in a row), %s: %s",
            self._settings.name,
            self._faults,
            "given up" if hopeless else "everything in flight is given back and begun anew",
            error,
            # An error of ours says what to do, and a traceback would bury it.
            exc_info=None if final else error,
        )
        unanswered = await self._give_up("unexpected error")
        self._log_failures()
        if self._stop.requested:
            self._abandon(unanswered)
        if isinstance(error, asyncio.CancelledError):
            # Raised as it is, it would look like an abort that nobody asked for.
            error = RuntimeError("something the relay waited for was cancelled; the relay itself was not")
        if hopeless:
            raise error
        await self._stop.sleep(FAULT_BACKOFF.wait(self._faults))

    async def _bring_home(self) -> None:
        """After a stop: what is published is carried to its marks, or given up in time to say so."""
        self._flights.may_answer_late(False)
        give_up_at = self._stop.deadline.at - reserve(self._stop.remaining())
        while self._flights.count or self._flights.broken:
            self._waits.look()
            now = self._waits.now()
            at = min(give_up_at, self._flights.stalled_at())
            if self._flights.broken or now >= at:
                self._abandon(await self._give_up("stopping"))
                break
            await self._waits.idle(at - now)
        self._log_failures()

    async def _let_go(self) -> None:
        """Others need not wait until the service has closed what else it has."""
        if not isinstance(self._store, LetsGo):
            return
        try:
            async with self._waits.at_most(LET_GO_BOUND, after_stop=self._claiming.grace):
                await self._store.let_go()
        except TimeoutError:
            log.warning("%s: the store could not let go in time; closing it will", self._settings.name)

    async def _abort(self) -> None:
        try:
            self._abandon(await self._flights.give_up("aborted", ABORT_BOUND))
        finally:
            # Also when cancelled once more: no task is left behind, and no claim if it can be helped.
            await self._flights.tear()

    def _log_failures(self) -> None:
        while (failure := self._flights.take_failure()) is not None:
            log.error("%s: unexpected error", self._settings.name, exc_info=failure)

    def _abandon(self, unanswered: int) -> None:
        # A worker that asked to be cancelled on drain has nothing to apologise for.
        if unanswered and self._settings.on_drain == "finish":
            self._stop.abandon("events published without an answer", unanswered)
