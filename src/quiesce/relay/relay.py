"""The relay as a worker."""

from collections.abc import Sequence
from typing import Literal

from quiesce.lifecycle.ports import OnDrain, Resource, Stop
from quiesce.outbox.ports import DecidesAboutDead, OutboxStore, Publisher, SaysHowOften, WaitsBehindDead
from quiesce.outbox.retry import RetryPolicy
from quiesce.relay.progress import Progress
from quiesce.relay.running import Running
from quiesce.relay.settings import IDLE_CEILING, POLL_INTERVAL, RelaySettings, dead_lets_key_go

__all__ = ["IDLE_CEILING", "Relay"]


class Relay:
    """Moves events from the outbox to the broker: at least once, in order per key. A `Worker`.

    Claims are published in the order in which they were made, several at once, and each is settled when
    the broker has answered for all of it. An iteration is one claim.

    After a stop nothing is claimed. What was claimed and not handed over is freed; what was handed over
    is carried to its marks, so a stop makes no duplicates while the broker answers in time. Shortly before
    the deadline the rest is given up: the producer is discarded, what was acked is marked, the rest is
    freed and counted as abandoned.

    A broker that is silent for `publish_bound` seconds is an outage: the producer is discarded as a whole,
    everything is freed, and nothing is claimed until the broker answers. No attempt is counted. A producer that
    lost answers, or that sends nothing more behind a refused event, is discarded as well and replaced. A database
    that is away is waited for in the same way. An unexpected error gives everything back and begins anew, up to
    five times in a row; then it is raised and the service stops.

    Args:
        store: where events wait. With `publisher`, a resource that the relay brings.
        publisher: where they go.
        name: for logs, metrics and the report.
        batch: most events of one claim.
        max_in_flight: most events claimed and not settled: what a crash can double. The relay takes fewer where the
            broker is so slow that a stop could not finish so many.
        max_claims: most claims open at once. Each holds a connection of the store.
        poll_interval: seconds between two claims while events keep coming: their latency. By default what the store
            says: 2 ms for the log store, which is asked less where many come, else 20 ms. A store that is idle is
            looked at every 0.1 s; the log store looks by itself, at the server, every 5 ms. `nudge` spares the wait.
        publish_bound: seconds without any answer from the broker after which it counts as away.
        store_bound: seconds a claim, a settle or a release may take.
        ready_within: seconds without progress, while events wait or a server is away, after which the service
            counts as not ready. None: never, for a service whose requests are worth serving meanwhile.
        retry: when a refused event is offered again, and when it is given up.
        bound: seconds it may take once it is told to stop; the budget's `workers` by default. What is in flight is
            sized for it.
        on_drain: "cancel" has it aborted as soon as a stop is requested, at the price of duplicates.
        after: "http" has it told to stop after the HTTP drain, so that it moves the last requests' events.

    Raises:
        SettingsError: an argument is wrong.
    """

    def __init__(
        self,
        store: OutboxStore,
        publisher: Publisher,
        *,
        name: str = "relay",
        batch: int = 500,
        max_in_flight: int = 1000,
        max_claims: int = 2,
        poll_interval: float | None = None,
        publish_bound: float = 10.0,
        store_bound: float = 10.0,
        ready_within: float | None = 30.0,
        retry: RetryPolicy | None = None,
        bound: float | None = None,
        on_drain: OnDrain = "finish",
        after: Literal["http"] | None = None,
    ) -> None:
        self.settings = RelaySettings(
            name=name,
            batch=batch,
            max_in_flight=max_in_flight,
            max_claims=max_claims,
            poll_interval=poll_interval if poll_interval is not None else _poll_interval(store),
            publish_bound=publish_bound,
            store_bound=store_bound,
            ready_within=ready_within,
            retry=retry if retry is not None else RetryPolicy(),
            bound=bound,
            on_drain=on_drain,
            after=after,
            dead_holds_key=store.dead_holds_key if isinstance(store, DecidesAboutDead) else dead_lets_key_go,
        )
        if isinstance(publisher, WaitsBehindDead):
            publisher.wait_behind_dead(self.settings.dead_holds_key)
        self.name = name
        self.bound = bound
        self.on_drain = on_drain
        self.after = after
        self.progress = Progress()
        self._store = store
        self._publisher = publisher
        self._running: Running | None = None

    @property
    def resources(self) -> Sequence[Resource[object]]:
        """Opened in this order, closed in reverse: the producer before the store."""
        return (self._store, self._publisher)

    def nudge(self) -> None:
        """Says that an event was just committed, so that the relay looks at once. From any thread.

        Nothing happens while it does not run or looks every few milliseconds anyway, and nothing is lost without it.
        """
        running = self._running
        if running is not None:
            running.nudge()

    def why_not_ready(self, now: float) -> str | None:
        """Says so when nothing has moved for `ready_within` seconds though events wait. For readiness."""
        limit = self.settings.ready_within
        seconds = self.progress.standing_still_for(now)
        if limit is None or seconds < limit:
            return None
        away = f"the {self.progress.outage} is away" if self.progress.outage else "no answer for what was published"
        return f"no progress for {seconds:.0f} s: {away}"

    def figures(self) -> str:
        """What a stop could count on, for the report: empty before anything is measured."""
        pace = self.progress.pace
        if pace is None:
            return ""
        return (
            f"at most {self.progress.allowed:,} of {self.settings.max_in_flight:,} events in flight: the broker "
            f"answered {pace:,.0f} a second at least, and a stop has {self.progress.within:g} s for them"
        )

    async def run(self, stop: Stop) -> None:
        self._running = Running(self.settings, self._store, self._publisher, stop, self.progress)
        try:
            await self._running.run()
        finally:
            self._running = None


def _poll_interval(store: OutboxStore) -> float:
    return store.poll_interval if isinstance(store, SaysHowOften) else POLL_INTERVAL
