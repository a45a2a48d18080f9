"""Blocking calls beside the event loop, each in a daemon thread of its own.

Not in the loop's executor: the interpreter waits for executor threads when it exits, and a `close()` that hangs in
C would hold the whole process.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BlockingCall(Generic[T]):
    """One call, running from the moment it is made. It cannot be cancelled, only no longer waited for."""

    def __init__(self, name: str, call: Callable[[], T]) -> None:
        self._loop = asyncio.get_running_loop()
        # What the caller's context says holds in the thread as well, such as whose critical sections these are.
        self._context = contextvars.copy_context()
        self._call = call
        self._ended = asyncio.Event()
        self._returned: list[T] = []
        self._raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        return self._ended.is_set()

    async def wait(self, seconds: float) -> bool:
        """Waits at most so long; whether it is over."""
        if not self.over and seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ended.wait()
        return self.over

    async def end(self) -> None:
        """Waits for its end, without a limit of its own."""
        await self._ended.wait()

    async def result(self) -> T:
        """Waits for what the call returns, or raises what it raised. Without a limit of its own."""
        await self._ended.wait()
        if self._raised is not None:
            raise self._raised
        return self._returned[0]

    @property
    def thread(self) -> int:
        """The number of its thread."""
        assert self._thread.ident is not None, "it was started"
        return self._thread.ident

    def _run(self) -> None:
        try:
            self._returned.append(self._context.run(self._call))
        except BaseException as error:  # noqa: BLE001 - SystemExit too: told to whoever waits
            self._raised = error
        with contextlib.suppress(RuntimeError):
            # The loop is closed: nobody waits any more.
            self._loop.call_soon_threadsafe(self._ended.set)
