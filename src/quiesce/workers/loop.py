"""A worker that iterates by itself."""

from collections.abc import Awaitable, Callable
from typing import Any

from quiesce.lifecycle.ports import OnDrain, Stop
from quiesce.workers.arguments import After, check_terms, worker_name
from quiesce.workers.iteration import unless_aborted


class Loop:
    """Runs `fn(stop, *args)`: a coroutine function that iterates over `stop.every(...)` by itself.

    What it raises ends the worker, and a worker that died stops the service.

    Args:
        fn: gets the stop token first, then `args`. It returns soon after a stop.
        name: for logs, metrics and the report; the function's own by default.
        bound: seconds it may take once it is told to stop; the budget's `workers` by default.
        on_drain: "cancel" has it cancelled as soon as a stop is requested, wherever it stands.
        after: "http" has it told to stop after the HTTP drain, for work that requests hand to it.

    Raises:
        SettingsError: an argument is wrong.
    """

    def __init__(
        self,
        fn: Callable[..., Awaitable[object]],
        *args: Any,
        name: str | None = None,
        bound: float | None = None,
        on_drain: OnDrain = "finish",
        after: After = None,
    ) -> None:
        self.name = worker_name(name, fn)
        check_terms(self.name, bound, on_drain, after)
        self.bound = bound
        self.on_drain = on_drain
        self.after = after
        self._fn = fn
        self._args = args

    async def run(self, stop: Stop) -> None:
        await unless_aborted(self._fn(stop, *self._args))
