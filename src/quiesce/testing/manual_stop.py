"""A stop token for the tests of one worker: fired by hand, and it remembers what it was told."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event
from quiesce.supervisor.stop import StopToken

E = TypeVar("E", bound=Event)


class ManualStop(StopToken):
    """The service's own token without a service around it. Make it inside a running loop.

    `events` are those it was told, `abandoned` the pairs of what and how many. `bound`: what the budget would say.
    """

    def __init__(self, worker: str = "worker", *, bound: float | None = None) -> None:
        self.events: list[Event] = []
        self.abandoned: list[tuple[str, int]] = []
        self._loop = asyncio.get_running_loop()
        super().__init__(worker, self._loop.time, self.events.append, self._remember, bound)

    def now(self, *, within: float = 20.0, reason: str = "test") -> None:
        """Asks for a stop; work in hand has `within` seconds."""
        self.fire(reason, Deadline(self._loop.time() + within))

    def at(self, seconds: float, *, within: float = 20.0) -> asyncio.TimerHandle:
        """Asks for a stop when the loop's clock shows `seconds`."""
        return self._loop.call_at(seconds, lambda: self.now(within=within))

    def told(self, kind: type[E], where: Callable[[E], bool] = lambda _: True) -> list[E]:
        """The events of this kind, in the order in which they were told."""
        return [event for event in self.events if isinstance(event, kind) and where(event)]

    def _remember(self, worker: str, what: str, count: int) -> None:
        self.abandoned.append((what, count))
