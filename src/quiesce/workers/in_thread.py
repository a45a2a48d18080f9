"""For handlers that block: their work in a thread of its own, which a cancel waits for."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from quiesce.blocking import BlockingCall

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `fn` in a daemon thread of its own: `await in_thread(charge, record)` in a handler.

    Nothing tears a thread. `asyncio.to_thread` returns from a cancel at once while its thread goes on: the consumer
    takes the handler for ended, and the thread writes over what the next owner of the partition does, or over the next
    try at the same record, for as long as it likes. This one keeps its cancel until the thread has ended. So no second
    try begins beside it, and a thread that goes on five seconds after its cancel ends the consumer with `HandlerStuck`,
    and the service with it.

    In these five seconds it is not fenced. Give what `fn` waits for a timeout below `revoke_bound`.

    Raises: what `fn` raises; `CancelledError` once the thread has ended, if it was cancelled meanwhile, whatever came
        of the work.
    """
    name = getattr(fn, "__qualname__", None) or type(fn).__name__
    call = BlockingCall(f"handler {name}", partial(fn, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not call.over:
        try:
            # Bounded by whoever cancels: the consumer calls a handler stuck that does not end.
            await call.end()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return await call.result()
