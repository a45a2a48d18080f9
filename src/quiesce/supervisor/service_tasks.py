"""The tasks that a service makes for itself, and the context that they are made in."""

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

from quiesce.supervisor.critical import begin_life, end_life, enter
from quiesce.supervisor.kept_tasks import Kept, innermost, keep_what_is_made_inside
from quiesce.supervisor.sections import Sections


class ServiceTasks:
    """What runs for one service. Its tasks see its critical sections, and nobody else's do.

    Args:
        kept: keeps them, and those that the user's code makes in them, from the end of the loop: for a loop that
            belongs to somebody else.
    """

    def __init__(self, sections: Sections, *, kept: bool) -> None:
        self.own: set[asyncio.Task[Any]] = set()
        self.left: list[asyncio.Task[Any]] = []
        """What still ran when the service was over."""
        self._loop = asyncio.get_running_loop()
        self._sections = sections
        # A host outlives us, and has sections of its own.
        self._context = contextvars.copy_context()
        self._context.run(enter, sections)
        self._kept = Kept() if kept else None
        if self._kept is not None:
            self._context.run(innermost.set, self._kept)
            keep_what_is_made_inside(self._loop)

    def begin(self) -> None:
        begin_life(self._sections)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name, context=self._context.copy())
        self.own.add(task)
        task.add_done_callback(self.own.discard)
        return task

    def end(self) -> None:
        end_life(self._sections)
        if self._kept is not None:
            self.left = self._kept.release()
