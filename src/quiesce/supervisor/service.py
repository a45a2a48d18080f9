"""What the start-up function is given: what is opened, served and run here is taken down by itself."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import OnDrain, Resource, Stop, Worker
from quiesce.supervisor.settings import read_settings
from quiesce.workers import Loop, Periodic

P = ParamSpec("P")
T = TypeVar("T")


class Host(Protocol):
    """Who does it: the runner."""

    @property
    def name(self) -> str: ...

    async def open(self, thing: Any, name: str | None, part: Part | None) -> Any: ...

    def serve(self, app: Any, host: str, port: int, settings: dict[str, Any]) -> int: ...

    def register(
        self, worker: Worker, name: str | None, bound: float | None, on_drain: OnDrain | None, after: str | None
    ) -> None: ...

    def stop(self, reason: str, *, within: float | None = None) -> None: ...


class Service:
    """Given to the start-up function: what is opened, served and run here is taken down by itself."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def name(self) -> str:
        return self._host.name

    def settings(self, kind: type[T]) -> T:
        """Reads the user's own settings from the environment.

        Raises:
            SettingsError: something is missing or wrong; the process ends with status 78.
        """
        return read_settings(kind)

    @overload
    async def open(
        self, resource: AbstractAsyncContextManager[T], *, name: str | None = None, part: Part | None = None
    ) -> T: ...

    @overload
    async def open(self, resource: Resource[T]) -> T: ...

    async def open(self, resource: Any, *, name: str | None = None, part: Part | None = None) -> Any:
        """Opens a resource and returns what it yields. Opened first, closed last, and always bounded.

        Takes an async context manager, or an adapter such as `open_pool(...)`. A server that is away is
        tried again for the service's `start_limit`, with the reason in the log and in readiness.

        Raises:
            StartInterrupted: a stop was requested meanwhile.
            StartError: still away after the limit.
        """
        return await self._host.open(resource, name, part)

    def http(self, app: Any, *, host: str = "0.0.0.0", port: int = 8080, **settings: Any) -> int:  # noqa: S104
        """Serves an ASGI application; returns the port (`port=0` takes a free one).

        Health answers from here on; everything else gets 503 until the start-up function has returned.
        `settings` go to uvicorn. Binding to every address is what a pod needs; pass `host` to bind to less.

        Raises:
            PortInUse: another process listens there.
        """
        return self._host.serve(app, host, port, settings)

    def run(
        self,
        worker: Worker,
        *,
        name: str | None = None,
        bound: float | None = None,
        on_drain: OnDrain | None = None,
        after: str | None = None,
    ) -> None:
        """Registers a worker. It begins once the start-up function has returned.

        Args:
            name: instead of the worker's own.
            bound: seconds it may take to finish once told to stop; the budget's `workers` by default.
            on_drain: "finish" lets the iteration in hand end; "cancel" cancels it at once.
            after: "http" tells it to stop only when the last request has been answered.

        Raises:
            BudgetError: the bound does not fit into the budget.
        """
        self._host.register(worker, name, bound, on_drain, after)

    def every(
        self,
        seconds: float,
        fn: Callable[P, Awaitable[object]],
        *args: Any,
        name: str | None = None,
        jitter: float = 0.0,
        bound: float | None = None,
        on_drain: OnDrain = "finish",
        after: str | None = None,
    ) -> None:
        """Runs `fn(*args)` every `seconds`. See `run` for the rest."""
        worker = Periodic(seconds, fn, *args, name=name, jitter=jitter)
        self.run(worker, bound=bound, on_drain=on_drain, after=after)

    def loop(
        self,
        fn: Callable[Concatenate[Stop, P], Awaitable[object]],
        *args: Any,
        name: str | None = None,
        bound: float | None = None,
        on_drain: OnDrain = "finish",
        after: str | None = None,
    ) -> None:
        """Runs `fn(stop, *args)`, which goes round by itself over `stop.every(...)`. See `run` for the rest."""
        self.run(Loop(fn, *args, name=name), bound=bound, on_drain=on_drain, after=after)

    def stop(self, reason: str, within: float | None = None) -> None:
        """Requests a stop, as a signal would. `within`: seconds left, where the caller knows."""
        self._host.stop(reason, within=within)
