"""Tasks that a cancelled caller does not take with it: what has begun with a replica goes on to its end."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OwnedTasks:
    """Holds them until they are over. None is bounded here: each piece of work brings its own bounds."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def own(self, work: Coroutine[Any, Any, T], name: str) -> "asyncio.Task[T]":
        """Begins the work; whoever waits for the task shields it."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def run(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Begins the work and returns its result. Cancelled, it lets the work go on."""
        return await asyncio.shield(self.own(work, name))

    async def settle(self, prefix: str = "") -> None:
        """Waits for those whose name begins so."""
        tasks = [task for task in self._tasks if task.get_name().startswith(prefix)]
        if tasks:
            await asyncio.wait(tasks)

    async def end(self) -> None:
        """Cancels what is left and waits for its end."""
        for task in self._tasks:
            task.cancel()
        await self.settle()

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Seen, although the caller who would have raised it may be gone.
            task.exception()
