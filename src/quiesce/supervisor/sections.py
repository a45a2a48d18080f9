"""Critical sections: stretches that reach their end whoever is cancelled meanwhile."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from quiesce.errors import IntakeClosed

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("quiesce.supervisor")


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    began: float


class Sections:
    """The open sections of one service. Closers wait until there are none.

    Args:
        on_change: is told +1 when a section begins and -1 when it ends.
    """

    def __init__(self, on_change: Callable[[int], None] = lambda _: None) -> None:
        self._on_change = on_change
        self._open: dict[asyncio.Task[Any], Section] = {}
        self._closed = False

    async def run(self, name: str, fn: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise IntakeClosed(f"critical section {name!r} came after the resources began to close")
        loop = asyncio.get_running_loop()
        task = loop.create_task(fn(*args, **kwargs), name=f"critical {name}")
        self._open[task] = Section(name, loop.time())
        self._on_change(+1)
        task.add_done_callback(self._ended)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                # `wait` leaves the task alone when we are cancelled. The loop is bounded by `abort`.
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                # Delivered when the section is over; a second cancel must not tear it either.
                cancelled = error
        if cancelled is not None:
            failure = None if task.cancelled() else task.exception()
            if failure is not None:
                log.error("critical section %s failed after its caller was cancelled", name, exc_info=failure)
            raise cancelled
        return task.result()

    def abort(self) -> list[str]:
        """Cancels what is still open and lets no further section begin. Returns the names."""
        self._closed = True
        names = [section.name for section in self._open.values()]
        for task in self._open:
            task.cancel("the time for critical sections is over")
        return names

    def open_names(self) -> list[tuple[str, float]]:
        """Names and ages, in seconds, of the open sections."""
        now = asyncio.get_running_loop().time()
        return [(section.name, now - section.began) for section in self._open.values()]

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._open[task]
        self._on_change(-1)


_current: ContextVar[Sections | None] = ContextVar("quiesce_sections", default=None)


def enter(sections: Sections) -> None:
    """Makes `critical` use these sections in this context and in all tasks made from it."""
    _current.set(sections)


async def critical(name: str, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `fn(*args)` to its end in a task that the service owns.

    Neither `Task.cancel()`, nor `asyncio.timeout`, nor a cancelled parent reaches it. A caller that is
    cancelled meanwhile gets its `CancelledError` after the section is over. The service keeps its
    resources open until then; only past the deadline of the drain is the section aborted, by name.

    Outside a service it protects in the same way, and nothing waits for it.

    Raises:
        IntakeClosed: the service has begun to close its resources.
        Exception: whatever `fn` raises.
    """

    async def section() -> T:
        return await fn(*args, **kwargs)

    sections = _current.get()
    return await (sections if sections is not None else Sections()).run(name, section)
