"""Transactions whose task is cancelled while their server hangs: they end in time all the same."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ROLLBACK_BOUND = 1.0
"""Seconds to roll back in once a handler is cancelled. Then the connection is cut, which ends the transaction, too: a
server that hangs must not make a handler look as if it never ended."""


@contextmanager
def cancelled_again(
    under_way: Callable[[], bool], hangs: Callable[[BaseException, str], None] | None = None
) -> Iterator[None]:
    """For drivers that answer a cancel by a longer wait, and a cancel amid that by closing the connection: once the
    task is cancelled and `ROLLBACK_BOUND` is over, it is cancelled again while a statement is `under_way`.

    The statement may be the handler's, or our rollback, which has met no cancel yet; so it goes on until none is.

    `hangs` is told of the cancel that leaves it then, and of what had no answer.
    """
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    before = task.cancelling()
    seen: float | None = None
    again = 0
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer, seen, again
        if task.cancelling() <= before:
            seen = None
        elif seen is None:
            seen = loop.time()
        elif loop.time() >= seen + ROLLBACK_BOUND and under_way():
            again += task.cancel()
        timer = loop.call_later(ROLLBACK_BOUND / 2, look)

    timer = loop.call_later(ROLLBACK_BOUND / 2, look)
    try:
        yield
    except asyncio.CancelledError as cancelled:
        if again and hangs is not None:
            hangs(cancelled, "a cancel or a rollback")
        raise
    finally:
        timer.cancel()
        for _ in range(again):
            task.uncancel()
