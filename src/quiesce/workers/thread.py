"""A worker that runs in a thread of its own."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

from quiesce.errors import SettingsError
from quiesce.lifecycle.ports import Stop
from quiesce.workers.arguments import After, check_terms, worker_name


class ThreadWorker:
    """Runs `fn(stop, *args)` in a thread of its own, for code that blocks.

    `fn` waits by the token: `stop.wait_sync`, `stop.sleep_sync`, `for _ in stop.every_sync(...)`. What blocks
    elsewhere is woken through `stop.on_stop`. What it raises ends the worker, and a worker that died stops
    the service.

    Nothing tears a thread. Past its bound `stop.aborted` is True; if it still runs when the resources are
    closed, it is left behind and named in the report. It does not hold the exit: the thread is a daemon.

    Args:
        fn: a plain function; gets the stop token first, then `args`. It returns soon after a stop.
        name: for logs, metrics and the report; the function's own by default. The thread is called "worker NAME".
        bound: seconds it may take once it is told to stop; the budget's `workers` by default.
        after: "http" has it told to stop after the HTTP drain.

    Raises:
        SettingsError: an argument is wrong.
    """

    never_torn = True

    def __init__(
        self,
        fn: Callable[..., object],
        *args: Any,
        name: str | None = None,
        bound: float | None = None,
        after: After = None,
    ) -> None:
        self.name = worker_name(name, fn)
        check_terms(self.name, bound, "finish", after)
        if inspect.iscoroutinefunction(fn):
            raise SettingsError(f"worker {self.name!r}: fn: got a coroutine function, takes a plain one; use s.loop")
        self.bound = bound
        self.after = after
        self._fn = fn
        self._args = args

    async def run(self, stop: Stop) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[BaseException | None] = loop.create_future()
        # The service's critical sections are found by this context.
        context = contextvars.copy_context()

        def end(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                context.run(self._fn, stop, *self._args)
            except BaseException as raised:  # noqa: BLE001 - raised again on the loop's side
                error = raised
            try:
                loop.call_soon_threadsafe(end, error)
            except RuntimeError:
                # The loop is closed: we were left behind, and nobody waits any more.
                return

        # Daemon: one that hangs must not hold the interpreter's exit.
        threading.Thread(target=work, name=f"worker {self.name}", daemon=True).start()
        # Bounded by whoever runs the worker.
        error = await ended
        if error is not None:
            raise error
