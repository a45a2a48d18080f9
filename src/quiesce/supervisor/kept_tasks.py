"""Tasks that the end of a loop does not reach.

`asyncio.run` and its like end by cancelling all of `asyncio.all_tasks` at once, in no order. What has an order of its
own to end in is kept out of those, together with every task that is made inside it: a group whose children are
cancelled swallows that, and what comes behind it would go on with half of the work done.
"""

import asyncio
from collections.abc import Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")
Task = asyncio.Task[Any]

innermost: "ContextVar[Kept | None]" = ContextVar("quiesce_kept", default=None)
"""What the tasks that are made here belong to."""


class Kept:
    """Keeps the tasks that are made in its context, and theirs, until it is over."""

    __slots__ = ("outer", "over", "tasks")

    def __init__(self) -> None:
        self.over = False
        self.outer = innermost.get()
        self.tasks: WeakSet[Task] | None = None

    def keep(self, task: Task) -> None:
        if self.tasks is None:
            self.tasks = WeakSet()
        self.tasks.add(task)
        asyncio._unregister_task(task)

    def release(self) -> list[Task]:
        """It is over. What still runs belongs to what is around it, or to the loop again, and is returned."""
        self.over = True
        if self.tasks is None:
            return []
        left = [task for task in self.tasks if not task.done()]
        self.tasks = None
        around = _open_one(self.outer)
        for task in left:
            if around is None:
                asyncio._register_task(task)
            else:
                around.keep(task)
        return left


def _open_one(kept: Kept | None) -> Kept | None:
    """This one, or the first around it that is not over."""
    while kept is not None and kept.over:
        kept = kept.outer
    return kept


class TaskFactory:
    """A loop's task factory: the one that was there, and what is made inside of something kept is kept as well."""

    __slots__ = ("_before",)

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any],
        *,
        context: Context | None = None,
        **more: Any,
    ) -> Any:
        # Only what was given is handed on: a factory of an older form knows no context.
        given = more if context is None else {**more, "context": context}
        make = self._before
        task = asyncio.Task(work, loop=loop, **given) if make is None else make(loop, work, **given)
        kept = innermost.get() if context is None else context.get(innermost)
        if kept is not None and (around := _open_one(kept)) is not None:
            around.keep(task)
        return task

    def make(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """A task that is nobody's yet."""
        if self._before is None:
            return asyncio.Task(work, loop=loop, name=name)
        task: asyncio.Task[T] = self._before(loop, work)
        task.set_name(name)
        return task


def keep_what_is_made_inside(loop: asyncio.AbstractEventLoop) -> TaskFactory:
    """Sees to it that this loop's tasks are asked where they are made. Once per loop, and again when somebody else
    has put a task factory of his own in the place of ours."""
    found: Any = loop.get_task_factory()
    if isinstance(found, TaskFactory):
        return found
    made: Any = TaskFactory(found)
    loop.set_task_factory(made)
    factory: TaskFactory = made
    return factory
