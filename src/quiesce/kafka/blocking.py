"""Between librdkafka and the event loop: blocking calls, calls from other threads, conditions without events.

A blocking call has a daemon thread of its own.

It is not in the loop's executor: the interpreter waits for executor threads when it exits, and a call into a
client whose brokers are gone may not return.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_thread(name: str, call: Callable[[], T]) -> "asyncio.Future[T]":
    """Runs `call` in a daemon thread. The future may be given up; the thread then ends unheard."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the future
            on_loop(loop, _fail, future, error)
        else:
            on_loop(loop, _succeed, future, result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def on_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Has the loop make a call; nothing happens if the loop is closed, for then nobody waits."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)


async def until(holds: Callable[[], bool], deadline: float, every: float = 0.005) -> bool:
    """Waits for a condition that librdkafka tells nobody about, looking `every` so many seconds.

    Returns whether it held before `deadline` (seconds of the monotonic clock).
    """
    while not holds():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        await asyncio.sleep(min(every, left))
    return True


def _succeed(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def settle_on_loop(future: "asyncio.Future[None]", error: Exception | None) -> None:
    """Ends a future from another thread: with an error, or with nothing."""
    if error is None:
        on_loop(future.get_loop(), _succeed, future, None)
    else:
        on_loop(future.get_loop(), _fail, future, error)
