"""The one loop that all kinds of workers iterate by."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from quiesce.lifecycle.ports import Stop

T = TypeVar("T")


async def iterate(
    stop: Stop,
    what: str,
    *,
    ready: Callable[[], Awaitable[T | None]],
    once: Callable[[T], Awaitable[None]],
    failed: Callable[[Exception], None],
) -> None:
    """Waits until there is something to do, does it, and again, until a stop is requested.

    The token is asked *after* waking and in the same act as the beginning, so that a stop which comes at
    the very instant of a tick still wins: no iteration begins behind it.

    Args:
        ready: waits for the next piece of work; None ends the loop. A stop must end its wait.
        once: does one piece of work: the iteration.
        failed: is given what an iteration raised, after it has been counted as failed. What it raises
            in turn ends the loop.
    """
    while (work := await ready()) is not None and (iteration := stop.begin(what)) is not None:
        try:
            with iteration:
                await unless_aborted(once(work))
        except Exception as error:  # noqa: BLE001 - `failed` logs it or raises it again
            failed(error)


async def unless_aborted(work: Awaitable[T]) -> T:
    """Awaits the work, and tells an abort from a cancel that came from inside.

    An abort of this task passes as `CancelledError`. But a future or a task that the work waited for may
    have been cancelled by somebody else: the same exception, and nobody asked this task to go. Passed on,
    it would end the worker without a word.

    Raises:
        CancelledFromInside: what the work waited for was cancelled, not this task.
    """
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise CancelledFromInside("something it waited for was cancelled; the worker itself was not") from error


class CancelledFromInside(Exception):
    """A failure like any other, which came in the dress of an abort."""
