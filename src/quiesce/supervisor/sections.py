"""Critical sections: stretches that reach their end whoever is cancelled meanwhile."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from quiesce.errors import IntakeClosed
from quiesce.lifecycle.deadline import Deadline

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("quiesce.supervisor")


@dataclass(slots=True, eq=False)
class Section:
    """`task` is None for one of a thread: `thread` is its number."""

    name: str
    began: float
    task: asyncio.Task[Any] | None = None
    thread: int = 0


class Sections:
    """The open sections of one service. Closers wait until there are none.

    Args:
        on_end: is called after each end, on the thread whose section it was.
        clock: seconds, the same as those of `until`.
        until: when sections that are still open are aborted.
    """

    def __init__(
        self,
        on_end: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        until: Callable[[], Deadline] = Deadline.never,
    ) -> None:
        self._on_end = on_end
        self._clock = clock
        self._until = until
        self._open: set[Section] = set()
        # Held while the machine decides, so that no thread begins a section behind its decision to close.
        self.lock = threading.RLock()
        self.closed = False

    async def run(self, name: str, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        if self.closed and _inside.get() not in self._open:
            raise self._too_late(name)
        loop = asyncio.get_running_loop()
        section = Section(name, self._clock())
        task = loop.create_task(_whole(section, fn, *args, **kwargs), name=f"critical {name}")
        section.task = task
        # Not among `asyncio.all_tasks`: whoever tears a loop down cancels all of those, and this one is ours to
        # end. Its caller is among them, and is not over before the section is.
        asyncio._unregister_task(task)
        self._open.add(section)
        cancelled: asyncio.CancelledError | None = None
        try:
            while not task.done():
                # A future of our own is what a cancel of the caller hits. The wait is bounded by `abort`.
                waiter = loop.create_future()
                task.add_done_callback(partial(_wake, waiter))
                try:
                    await waiter
                except asyncio.CancelledError as error:
                    # Delivered when the section is over; a second cancel must not tear it either.
                    cancelled = cancelled or error
        finally:
            if task.done():
                self._ended(section)
            else:
                # Our coroutine is being closed from outside. The section goes on, and holds the closers back.
                task.add_done_callback(lambda _: self._ended(section))
        if cancelled is not None:
            failure = None if task.cancelled() else task.exception()
            if failure is not None:
                log.error("critical section %s failed after its caller was cancelled", name, exc_info=failure)
            raise cancelled
        return task.result()

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """The twin for threads."""
        with self.lock:
            if self.closed and _inside.get() not in self._open:
                raise self._too_late(name)
            section = Section(name, self._clock(), thread=threading.get_ident())
            self._open.add(section)
        inside = _inside.set(section)
        try:
            yield
        finally:
            _inside.reset(inside)
            self._ended(section)

    @property
    def count(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """From here on only sections inside an open one begin. With the lock held."""
        self.closed = True

    def abort(self) -> list[str]:
        """Cancels what is still open. A thread's cannot be cancelled. Returns the names."""
        self.closed = True
        open_now = self.open()
        for section in open_now:
            if section.task is not None:
                section.task.cancel("the time for critical sections is over")
        return [section.name for section in open_now]

    def open(self) -> list[Section]:
        """Those open now, the oldest first; from any thread."""
        with self.lock:
            return sorted(self._open, key=lambda section: section.began)

    def open_names(self) -> list[tuple[str, float]]:
        """Names and ages, in seconds, of the open sections."""
        now = self._clock()
        return [(section.name, now - section.began) for section in self.open()]

    def remaining(self) -> float:
        return self._until().remaining(self._clock())

    def _ended(self, section: Section) -> None:
        with self.lock:
            self._open.discard(section)
        self._on_end()

    def _too_late(self, name: str) -> IntakeClosed:
        return IntakeClosed(f"critical section {name!r} came after the resources began to close")


_current: ContextVar[Sections | None] = ContextVar("quiesce_sections", default=None)
_inside: ContextVar[Section | None] = ContextVar("quiesce_inside_section", default=None)


_NOBODYS = Sections()
"""Those outside a service: nothing waits for them, so one serves all."""


def enter(sections: Sections | None) -> None:
    """Makes `critical` use these sections in this context and in all tasks made from it."""
    _current.set(sections)


@contextmanager
def outside() -> Iterator[None]:
    """For opening a resource: what it does while it closes must not wait for the sections of its service."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


async def _whole(section: Section, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    # In the section's own context: what begins inside an open section is part of it.
    _inside.set(section)
    return await fn(*args, **kwargs)


def _wake(waiter: asyncio.Future[None], _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def critical(name: str, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `fn(*args)` to its end in a task that the service owns.

    Neither `Task.cancel()`, nor `asyncio.timeout`, nor a cancelled parent, nor the end of `asyncio.run` reaches
    it. A caller that is cancelled meanwhile gets its `CancelledError` after the section is over. The service
    keeps its resources open until then; only past the deadline of the drain is the section aborted, by name.
    Sections nest.

    Outside a service it protects in the same way, and nothing waits for it.

    Raises:
        IntakeClosed: the service has begun to close its resources.
        Exception: whatever `fn` raises.
    """
    sections = _current.get()
    return await (sections if sections is not None else _NOBODYS).run(name, fn, *args, **kwargs)


@contextmanager
def critical_in_thread(name: str) -> Iterator[None]:
    """The twin of `critical` for code that runs in a thread: `with critical_in_thread("charge payment"):`.

    Nothing tears a thread, so there is only this to do: the service keeps its resources open until the block
    is left, and names it if it overruns. Works in threads of `s.thread` and of `asyncio.to_thread`.

    Raises:
        IntakeClosed: the service has begun to close its resources.
        RuntimeError: it was used in a coroutine, where it could not protect anything.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError(f"critical_in_thread({name!r}) protects nothing in a coroutine; use: await critical(...)")
    sections = _current.get()
    with (sections if sections is not None else _NOBODYS).hold(name):
        yield


def remaining() -> float:
    """Seconds until a critical section that is open here would be aborted; infinite until a stop is requested.

    Never below zero. Works in coroutines and in threads of the service; outside a service it is infinite.
    """
    sections = _current.get()
    return Deadline.never().at if sections is None else sections.remaining()
