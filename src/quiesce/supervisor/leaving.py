"""SystemExit and KeyboardInterrupt inside a task.

A task that raises one of them tears the loop down in the middle of its turn: no closer would be called, and no report
written. So a task that runs the user's code returns it, and whoever waits for the task raises it in its own frame.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Leaving:
    """What a task returns in place of raising it."""

    error: BaseException


async def carried(work: Awaitable[T]) -> T | Leaving:
    """What `work` returns, or that it wants the process to end. Everything else it raises."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        return Leaving(error)


def result_of(task: "asyncio.Task[T | Leaving]") -> T:
    """What the task's function returned.

    Raises:
        BaseException: what it raised, SystemExit and KeyboardInterrupt among it.
    """
    result = task.result()
    if isinstance(result, Leaving):
        raise result.error
    return result


def failure_of(task: "asyncio.Task[T | Leaving]") -> BaseException | None:
    """What the task's function raised; None if it returned, or was cancelled."""
    if task.cancelled():
        return None
    error = task.exception()
    if error is None and isinstance(result := task.result(), Leaving):
        error = result.error
    return error
