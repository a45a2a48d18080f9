"""Critical sections: stretches that reach their end whoever is cancelled meanwhile. They are begun by `critical`."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

from quiesce.errors import IntakeClosed
from quiesce.lifecycle.deadline import Deadline
from quiesce.supervisor.kept_tasks import Kept, TaskFactory, innermost, keep_what_is_made_inside
from quiesce.supervisor.leaving import Leaving, failure_of, result_of

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("quiesce.supervisor")


class Section(Kept):
    """`task` is None for one of a thread: `thread` is its number."""

    __slots__ = ("aborted", "began", "name", "task", "thread")

    def __init__(self, name: str, began: float, thread: int = 0) -> None:
        # Without `super()`: this is the most frequent call here.
        self.over = False
        self.outer = innermost.get()
        self.tasks = None
        self.name = name
        self.began = began
        self.thread = thread
        self.task: asyncio.Task[Any] | None = None
        self.aborted = False


class Sections:
    """The open sections of one service. Closers wait until there are none.

    Args:
        on_end: is called after each end, on the thread whose section it was.
        clock: seconds, the same as those of `until`.
        until: when sections that are still open are aborted.
        on_failure: is told the name and the error of one that failed, was not aborted, and had nobody left to
            raise it to, its caller being cancelled.
    """

    def __init__(
        self,
        on_end: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        until: Callable[[], Deadline] = Deadline.never,
        on_failure: Callable[[str, BaseException], None] = lambda name, error: None,
    ) -> None:
        self._on_end = on_end
        self._clock = clock
        self._until = until
        self._on_failure = on_failure
        self._open: set[Section] = set()
        # Held while the machine decides, so that no thread begins a section behind its decision to close.
        self.lock = threading.RLock()
        self.closed = False

    async def run(self, name: str, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        if self.closed and innermost.get() not in self._open:
            raise self._too_late(name)
        loop = asyncio.get_running_loop()
        section = Section(name, self._clock())
        self._open.add(section)
        found: Any = loop.get_task_factory()
        factory = found if type(found) is TaskFactory else keep_what_is_made_inside(loop)
        task = factory.make(loop, _whole(section, fn, *args, **kwargs), f"critical {name}")
        # Not among `asyncio.all_tasks`: whoever tears a loop down cancels all of those, and this one is ours to
        # end. Its caller is among them, and is not over before the section is.
        asyncio._unregister_task(task)
        section.task = task
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
                task.add_done_callback(partial(self._ended_alone, section))
        if cancelled is not None:
            self._tell_failed(section, task)
            raise cancelled
        return result_of(task)

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """The twin for threads."""
        with self.lock:
            if self.closed and innermost.get() not in self._open:
                raise self._too_late(name)
            section = Section(name, self._clock(), threading.get_ident())
            self._open.add(section)
        inside = innermost.set(section)
        try:
            yield
        finally:
            innermost.reset(inside)
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
            section.aborted = True
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
        section.over = True
        if section.tasks is not None:
            section.release()
        self._on_end()

    def _ended_alone(self, section: Section, task: "asyncio.Task[Any]") -> None:
        self._tell_failed(section, task)
        self._ended(section)

    def _tell_failed(self, section: Section, task: "asyncio.Task[Any]") -> None:
        failure = failure_of(task)
        if failure is None:
            return
        log.error("critical section %s failed after its caller was cancelled", section.name, exc_info=failure)
        if not section.aborted:
            self._on_failure(section.name, failure)

    def _too_late(self, name: str) -> IntakeClosed:
        return IntakeClosed(f"critical section {name!r} came after the resources began to close")


async def _whole(section: Section, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T | Leaving:
    # In the section's own context: what begins inside an open section is part of it, sections and tasks.
    innermost.set(section)
    try:
        return await fn(*args, **kwargs)
    except (SystemExit, KeyboardInterrupt) as error:
        return Leaving(error)


def _wake(waiter: asyncio.Future[None], _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)
