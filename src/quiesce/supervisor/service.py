"""What the start-up function is given: what is opened, served and run here is taken down by itself."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import OnDrain, Resource, Stop, Worker
from quiesce.lifecycle.restart import Restart
from quiesce.supervisor.context_resources import Closable
from quiesce.supervisor.health import ReadinessWhileDraining
from quiesce.supervisor.members import Terms
from quiesce.supervisor.settings import read_settings
from quiesce.workers import Loop, Periodic, ThreadWorker

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=Closable)


class Host(Protocol):
    """Who does it: the runner."""

    @property
    def name(self) -> str: ...

    async def open(self, thing: Any, name: str | None, part: Part | None) -> Any: ...

    def serve(
        self, app: Any, host: str, port: int, draining: ReadinessWhileDraining, settings: dict[str, Any]
    ) -> int: ...

    def register(self, worker: Worker, terms: Terms) -> None: ...

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

    @overload
    async def open(
        self, resource: AbstractContextManager[T], *, name: str | None = None, part: Part | None = None
    ) -> T: ...

    @overload
    async def open(self, resource: C, *, name: str | None = None, part: Part | None = None) -> C: ...

    async def open(self, resource: Any, *, name: str | None = None, part: Part | None = None) -> Any:
        """Opens a resource and returns what it yields. Opened first, closed last, and always bounded.

        Takes an adapter such as `open_pool(...)`, a context manager, async or not, or something that is open
        already and has `aclose()`, `close()` or `dispose()`. What is not async is entered, left and closed in
        a daemon thread of ours, as it may block; one that is both a context manager and closable is entered
        (wrap it in `contextlib.closing` where `with` does not close it, as with sqlite3). A server that is
        away is tried again for the service's `start_limit`, with the reason in the log and in readiness.

        Raises:
            StartInterrupted: a stop was requested meanwhile.
            StartError: still away after the limit.
        """
        return await self._host.open(resource, name, part)

    def http(
        self,
        app: Any,
        *,
        host: str = "0.0.0.0",  # noqa: S104
        port: int = 8080,
        readiness_while_draining: ReadinessWhileDraining = 503,
        **settings: Any,
    ) -> int:
        """Serves an ASGI application; returns the port (`port=0` takes a free one).

        Health answers from here on; everything else gets 503 until the start-up function has returned.
        `settings` go to uvicorn. Binding to every address is what a pod needs; pass `host` to bind to less.

        Where another server serves the application (`quiesce.asgi`), nothing is bound and 0 is returned.

        Args:
            readiness_while_draining: the status of `/health/ready` from the request to stop on. 503 tells
                balancers that probe to go elsewhere; 200 suits a mesh that learns it otherwise, or alerts
                that take each 503 for an accident. The body says "draining", with the reason, in both cases.

        Raises:
            PortInUse: another process listens there.
            SettingsError: it was called twice; or, as a guest, with another application than the one served.
        """
        return self._host.serve(app, host, port, readiness_while_draining, settings)

    def run(
        self,
        worker: Worker,
        *,
        name: str | None = None,
        bound: float | None = None,
        on_drain: OnDrain | None = None,
        after: str | None = None,
        keeps: str | Sequence[str] | None = None,
        restart: Restart | None = None,
        hand_back: Callable[[], object] | None = None,
    ) -> None:
        """Registers a worker. It begins once the start-up function has returned.

        Args:
            name: instead of the worker's own.
            bound: seconds it may take to finish once told to stop; the budget's `workers` by default.
            on_drain: "finish" lets the iteration in hand end; "cancel" cancels it at once.
            after: "http" tells it to stop only when the last request has been answered.
            keeps: names of workers whose work it protects, such as by a heartbeat or a lease, or "all": it is
                told to stop only when they are over. Its `bound` begins there, and is 1 second by default.
            restart: begins it again when it fails. By default a failure stops the service.
            hand_back: called when it was torn with an iteration in hand, to put that back: bounded by one
                second, in a critical section. It must be safe if the work was done after all.

        Raises:
            BudgetError: the bound does not fit into the budget.
            SettingsError: a term that cannot be kept.
        """
        terms = Terms(
            name=name, bound=bound, on_drain=on_drain, after=after, keeps=keeps, restart=restart, hand_back=hand_back
        )
        self._host.register(worker, terms)

    def every(
        self,
        seconds: float,
        fn: Callable[P, Awaitable[object]],
        *args: Any,
        name: str | None = None,
        jitter: float = 0.0,
        at_once: bool = False,
        bound: float | None = None,
        on_drain: OnDrain = "finish",
        after: str | None = None,
        keeps: str | Sequence[str] | None = None,
        hand_back: Callable[..., object] | None = None,
    ) -> None:
        """Runs `fn(*args)` every `seconds`. A call that fails is logged, and the next one comes at its time.

        The first call comes one interval after the start, or with it if `at_once`. Up to `jitter` seconds are
        added to each, to keep many replicas apart.
        `hand_back` is called with the same `args`. See `run` for the rest.
        """
        worker = Periodic(seconds, fn, *args, name=name, jitter=jitter, at_once=at_once)
        back = None if hand_back is None else partial(hand_back, *args)
        self.run(worker, bound=bound, on_drain=on_drain, after=after, keeps=keeps, hand_back=back)

    def loop(
        self,
        fn: Callable[Concatenate[Stop, P], Awaitable[object]],
        *args: Any,
        name: str | None = None,
        bound: float | None = None,
        on_drain: OnDrain = "finish",
        after: str | None = None,
        keeps: str | Sequence[str] | None = None,
        restart: Restart | None = None,
        hand_back: Callable[..., object] | None = None,
    ) -> None:
        """Runs `fn(stop, *args)`, which goes round by itself over `stop.every(...)`.

        `hand_back` is called with the same `args`. See `run` for the rest.
        """
        back = None if hand_back is None else partial(hand_back, *args)
        worker = Loop(fn, *args, name=name)
        self.run(worker, bound=bound, on_drain=on_drain, after=after, keeps=keeps, restart=restart, hand_back=back)

    def thread(
        self,
        fn: Callable[Concatenate[Stop, P], object],
        *args: Any,
        name: str | None = None,
        bound: float | None = None,
        after: str | None = None,
        keeps: str | Sequence[str] | None = None,
        restart: Restart | None = None,
    ) -> None:
        """Runs `fn(stop, *args)` in a thread of its own, which waits by `stop.sleep_sync` and the like.

        Nothing tears a thread, so there is no `on_drain` and no `hand_back`. One that overruns is left behind
        when the resources close, is named in the report, and does not hold the exit. See `run` for the rest.
        """
        self.run(ThreadWorker(fn, *args, name=name), bound=bound, after=after, keeps=keeps, restart=restart)

    def stop(self, reason: str, within: float | None = None) -> None:
        """Requests a stop, as a signal would. `within`: seconds left, where the caller knows."""
        self._host.stop(reason, within=within)
