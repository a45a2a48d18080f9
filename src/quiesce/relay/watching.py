"""Has the store wait for events, where it can do that by itself."""

import asyncio
import logging
from collections.abc import Callable

from quiesce.errors import Unavailable
from quiesce.outbox.ports import OutboxStore, Watches

log = logging.getLogger("quiesce.relay")

AT_MOST = 1.0
"""Seconds that one watch may take. After it the relay claims all the same."""

LOOKS = 2
"""Of a store that watches, in one poll interval while events come: half of what lies between two is their latency. They
cost the relay nothing, and the server far less than a claim."""

IDLE_EVERY = 0.005
"""Seconds between two looks of a store that watches, once nothing has come for a while."""

AWAKE = 2.0
"""Seconds without any event after which it is a while."""


MOST_GATHERED = 2.5
"""Poll intervals that a claim waits for more events, at most."""


def gather(found: int) -> float:
    """For how many poll intervals events are gathered before the next look, when the last claim has found so many.

    One while single events come: it is their latency. More where they come in numbers, since a claim costs about the
    same for one event and for some.
    """
    return min(MOST_GATHERED, max(1.0, found - 1.0))


class Watching:
    """One watch after the other, begun by `begin`. What one has found is offered to `take` first, which says after how
    many seconds the next one looks. Where it answers None, and where nothing was found, `told` is called.

    A store that cannot watch, or whose watch fails, is asked by the clock: `watches` is False then, for as long as
    a failed one is not worth another try.
    """

    def __init__(
        self,
        name: str,
        store: OutboxStore,
        every: float,
        now: Callable[[], float],
        take: Callable[[], float | None],
        told: Callable[[], None],
    ) -> None:
        self._task_name = f"{name}: watches"
        self._name = name
        self._store = store if isinstance(store, Watches) else None
        self._every = every
        self._now = now
        self._take = take
        self._told = told
        self._task: asyncio.Task[None] | None = None
        self._failed_at = float("-inf")
        self._active_at = float("-inf")
        self._often = False
        self._news: bool | None = None

    @property
    def watches(self) -> bool:
        return self._store is not None and self._store.watches and self._now() > self._failed_at + AT_MOST

    @property
    def looks_often(self) -> bool:
        """Whether the watch under way finds an event about as soon as a claim made now would."""
        return self._task is not None and self._often

    def take_news(self) -> bool | None:
        """What the watch that has ended had to say, once: whether there is something. None: none has ended."""
        news, self._news = self._news, None
        return news

    def active(self) -> None:
        """Events come."""
        self._active_at = self._now()

    def begin(self, pause: float) -> None:
        """Begins a watch that first looks after `pause` seconds, unless one is under way."""
        if self._store is None or self._task is not None:
            return
        self._often = self._awake()
        self._task = asyncio.get_running_loop().create_task(self._watch(self._store, pause), name=self._task_name)

    async def end(self, within: float) -> None:
        """Ends what is under way, in so many seconds at most: gently in the first half of them."""
        task, self._task = self._task, None
        if task is None or self._store is None:
            return
        self._store.end_watch()
        try:
            await asyncio.wait({task}, timeout=within / 2)
        finally:
            task.cancel()
        await asyncio.wait({task}, timeout=within / 2)

    async def _watch(self, store: Watches, pause: float) -> None:
        try:
            # In this task, and without a turn of the loop: it is the way of each event of a trickle.
            following: float | None = pause
            while following is not None:
                self._often = self._awake()
                every = self._every if self._often else max(IDLE_EVERY, self._every)
                found = await store.watch(AT_MOST, every, following)
                following = self._take() if found else None
            self._news = found
        except Exception as error:  # noqa: BLE001 - the next claim tells what it means, and this is no work in hand
            self._failed_at, self._news = self._now(), True
            level = logging.DEBUG if isinstance(error, Unavailable) else logging.WARNING
            log.log(level, "%s: the outbox is asked by the clock now: watching it failed: %s", self._name, error)
        finally:
            self._task = None
            if self._news is None:
                # Cancelled from inside.
                self._news = True
            self._told()

    def _awake(self) -> bool:
        return self._now() < self._active_at + AWAKE
