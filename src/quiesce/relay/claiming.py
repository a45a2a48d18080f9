"""Claims: made at once or asked for, launched, and when the next one is due."""

from contextlib import ExitStack
from math import inf

from quiesce.errors import Unavailable
from quiesce.lifecycle.ports import Stop
from quiesce.outbox.events import LanesTakenOver
from quiesce.outbox.ports import Claim, ClaimsAtOnce, KnowsWhySilent, OutboxStore, TakesOver
from quiesce.relay.flight import release
from quiesce.relay.flights import Flights
from quiesce.relay.intake import Pace, room
from quiesce.relay.outages import Outage
from quiesce.relay.progress import Progress
from quiesce.relay.settings import RelaySettings
from quiesce.relay.waits import Waits
from quiesce.relay.watching import LOOKS, Watching, gather

CLAIM_GRACE = 1.0
"""Seconds that a claim being made has to come back in once a stop is requested, but at most a quarter of the
drain; then it is cancelled."""


class Claiming:
    """One claim at a time. Between two of them the store watches, where it can."""

    def __init__(
        self,
        settings: RelaySettings,
        store: OutboxStore,
        stop: Stop,
        waits: Waits,
        flights: Flights,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._store = store
        self._stop = stop
        self._waits = waits
        self._flights = flights
        self._progress = progress
        self._database = Outage(settings.name, "database", stop, progress)
        self._pace = Pace(settings.poll_interval)
        self._watching = Watching(
            settings.name, store, settings.poll_interval / LOOKS, waits.now, self._take_found, waits.wake
        )
        # Whether the next claim is made because it was time for one, and not since there was something.
        self._in_turn = True
        self._at_once = store if isinstance(store, ClaimsAtOnce) else None
        self._takes_over = store if isinstance(store, TakesOver) else None
        self.next_at = waits.now()
        """When the next claim is due; infinity while a watch will say so."""

    def hurry(self) -> None:
        """There is, or will soon be, something to claim."""
        self._pace.hurry()
        # Of many writers that all say so, each would else cost a claim that finds what the watch has found already.
        if not self._watching.looks_often:
            self.now_due()

    def now_due(self) -> None:
        """The next claim is."""
        self.next_at = self._waits.now()

    def take_news(self) -> None:
        """Sees what a watch that has ended had to say."""
        news = self._watching.take_news()
        if news is not None:
            self._in_turn = not news
            self.now_due()

    def room(self) -> int:
        """How many events the next claim may take."""
        return room(self._settings, self._flights.count, self._flights.events, self._flights.allowed())

    async def end(self, within: float) -> None:
        """Ends the watch under way, in so many seconds at most."""
        await self._watching.end(within)

    async def claim(self, limit: int) -> None:
        """One claim. Its iteration lasts until the claim is settled; a stop begins none."""
        if found := self._claim_at_once(limit):
            self._look_again(found, limit)
            return
        iteration = self._stop.begin("claim")
        if iteration is None:
            return
        began = self._waits.now()
        self._flights.held.claiming()
        with ExitStack() as stack:
            stack.enter_context(iteration)
            try:
                claim = await self._ask(limit)
            except (Unavailable, TimeoutError) as error:
                why = str(error) or f"no answer in {self._waits.now() - began:.3g} s"
                if isinstance(self._store, KnowsWhySilent) and self._store.why_silent:
                    why = f"{why} ({self._store.why_silent})"
            else:
                # From here to the launch nothing waits: a claim cannot get lost on the way.
                self._answered()
                found = len(claim.events)
                if found:
                    # Before the next look: that can wait, and an event should not.
                    self._flights.launch(claim, stack.pop_all(), began)
                self._look_again(found, limit)
                if not found:
                    if not self._flights.count:
                        self._progress.nothing_waits()
                    # An empty claim holds a transaction all the same.
                    await self._release(claim)
                return
        if not self._stop.requested:
            await self._stop.sleep(self._database.failed(self._waits.now(), why))

    def _take_found(self) -> float | None:
        """Claims what a watch has found, where the run waits for nothing else. In how many seconds the next watch
        looks; None where the run has to see to it."""
        try:
            if not self._flights.quiet or not (limit := self.room()):
                return None
            found = self._claim_at_once(limit)
        except Exception as error:  # noqa: BLE001 - the run begins anew, as for what it meets itself
            self._flights.failed(error)
            return None
        if not found:
            return None
        self._watching.active()
        if found >= limit or not self._watching.watches:
            return None
        self._in_turn = False
        return self._gathering(found, limit)

    def _claim_at_once(self, limit: int) -> int:
        """A trickle of events is claimed as a watch has brought them, and goes along with the claim before where that
        can take them. How many it has claimed; 0 where the store has to be asked."""
        if self._at_once is None or not self._flights.may_hand_over():
            return 0
        claim = self._at_once.claim_at_once(limit)
        if claim is None:
            return 0
        found = len(claim.events)
        if not self._flights.grow(claim):
            began = self._waits.now()
            self._flights.held.claiming()
            with ExitStack() as stack:
                if (iteration := self._stop.begin("claim")) is not None:
                    stack.enter_context(iteration)
                self._answered()
                # Without an iteration, since a stop has come, it is only given back.
                self._flights.launch(claim, stack.pop_all(), began, claim)
        return found

    def _answered(self) -> None:
        """The store has answered a claim."""
        self._database.answered(self._waits.now())
        self._database.works()
        if self._takes_over is not None:
            for takeover in self._takes_over.takeovers():
                self._stop.tell(LanesTakenOver(self._settings.name, takeover.lanes, takeover.seconds))

    async def _ask(self, limit: int) -> Claim:
        async with self._waits.at_most(self._settings.store_bound, after_stop=self.grace):
            return await self._store.claim(limit)

    async def _release(self, claim: Claim) -> None:
        await release(claim, self._waits.at_most(self._settings.store_bound, after_stop=self.grace))

    def grace(self) -> float:
        """Seconds that what is asked of the store may take once a stop is requested."""
        return min(CLAIM_GRACE, 0.25 * self._stop.remaining())

    def _look_again(self, found: int, asked: int) -> None:
        """Behind a claim: when the next one is due, or that the store says when."""
        if found:
            self._watching.active()
        if found >= asked or not self._watching.watches:
            self.next_at = self._waits.now() + self._pace.after(found, asked)
            return
        self.next_at = inf
        self._watching.begin(self._gathering(found, asked))

    def _gathering(self, found: int, asked: int) -> float:
        """Seconds until a watch looks behind a claim."""
        # A claim that is only made from time to time says nothing about the pace.
        return self._settings.poll_interval if self._in_turn else self._pace.after(found, asked) * gather(found)
