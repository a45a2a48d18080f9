"""The start of one service: runs its start-up function, and is what that function opens, serves and registers with."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from quiesce.errors import QuiesceError, SettingsError, StartInterrupted
from quiesce.lifecycle import events as ev
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import NeedsResources, Resource, ShowsProgress, Worker
from quiesce.supervisor import critical as critical_sections
from quiesce.supervisor.definition import ServiceDefinition
from quiesce.supervisor.health import AsgiApp, Gate, HttpPart, Mount, ReadinessWhileDraining, ServesRoutes
from quiesce.supervisor.http import HttpServer, configured
from quiesce.supervisor.http_listener import bind
from quiesce.supervisor.members import RunningWorker, Terms
from quiesce.supervisor.readiness import Readiness
from quiesce.supervisor.reporting import Reporting, line_of
from quiesce.supervisor.request_stop import HttpStop
from quiesce.supervisor.resources import as_resource, open_with_patience
from quiesce.supervisor.sections import Sections
from quiesce.supervisor.service import Service
from quiesce.supervisor.stop import StopToken
from quiesce.supervisor.telling import LogObserver, Telling
from quiesce.supervisor.working import Spawn

log = logging.getLogger("quiesce.supervisor")


_starts: "ContextVar[Starting | None]" = ContextVar("quiesce_starts", default=None)
"""Whose start-up function this is, and all tasks made in it."""


class RequestsStop(Protocol):
    """Asks for the stop of the service."""

    def __call__(self, reason: str, *, within: float | None = None, failed: bool = False) -> None: ...


class Starting:
    """What the start has brought: `workers`, `resources`, `http` and its `gate`. The host of a `Service`.

    Args:
        turn: is called when the start is over, however it ended.
        mount: takes the application in place of a server of ours, where another one serves it.
    """

    def __init__(
        self,
        definition: ServiceDefinition,
        machine: Machine,
        telling: Telling,
        readiness: Readiness,
        reporting: Reporting,
        log_observer: LogObserver,
        sections: Sections,
        spawn: Spawn,
        stop: RequestsStop,
        turn: Callable[[], None],
        mount: Mount | None,
    ) -> None:
        self.name = definition.name
        self.workers: dict[str, RunningWorker] = {}
        self.resources: dict[str, Resource[Any]] = {}
        self.http: HttpPart | None = None
        self.gate: Gate | None = None
        self.task: asyncio.Task[None] | None = None
        self.stop = stop
        self._definition = definition
        self._machine = machine
        self._telling = telling
        self._readiness = readiness
        self._reporting = reporting
        self._log_observer = log_observer
        self._sections = sections
        self._spawn = spawn
        self._turn = turn
        self._mount = mount
        self._opened: set[int] = set()
        self._opening: dict[str, asyncio.Task[Any]] = {}
        self._of_start: set[str] = set()
        self._now = asyncio.get_running_loop().time

    def begin(self) -> None:
        """Starts the service; a stop that was requested before makes it end without ever opening anything."""
        if self._machine.stopping:
            self._machine.start_ended()
        else:
            self.task = self._spawn(self._run(), f"start {self.name}")
            self.task.add_done_callback(self._never_ran)

    @property
    def tasks(self) -> dict[tuple[str, str], asyncio.Task[Any]]:
        """The task of the start-up function, and the tasks that open something now, by kind and name."""
        start = {} if self.task is None else {("start", "function"): self.task}
        return start | {("opening", name): task for name, task in self._opening.items()}

    def interrupt(self) -> None:
        """Cancels the start-up function, and the openings in tasks that it has made. Those of a worker or a request
        are work in hand: they end with that."""
        tasks = {self.task, *(self._opening[name] for name in self._of_start & self._opening.keys())}
        for task in tasks - {None}:
            assert task is not None
            task.cancel("a stop was requested")

    # For the start-up function.

    async def open(self, thing: Any, name: str | None, part: Part | None) -> Any:
        resource = as_resource(thing, name, part)
        # A signal that came since the last await is heard here, and not behind the beginning of the next opening.
        await asyncio.sleep(0)
        if not self._machine.members.opening(resource.name, resource.part):
            raise StartInterrupted(f"{resource.name} is not opened: a stop was requested")
        began = self._now()
        task = asyncio.current_task()
        assert task is not None
        self._opening[resource.name] = task
        if _starts.get() is self:
            self._of_start.add(resource.name)
        try:
            with critical_sections.outside():
                value = await open_with_patience(resource, self._definition.start_limit, Backoff(), self._unavailable)
        except BaseException:
            self._machine.members.open_failed(resource.name)
            raise
        finally:
            del self._opening[resource.name]
            if self._machine.stopping:
                asyncio.get_running_loop().call_soon(self._turn)
        self.resources[resource.name] = resource
        self._opened.add(id(thing))
        self._machine.members.opened(resource.name)
        self._telling.tell(ev.ResourceOpened(resource.name, self._now() - began))
        self._readiness.explain("starting")
        return value

    def serve(self, app: Any, host: str, port: int, draining: ReadinessWhileDraining, settings: dict[str, Any]) -> int:
        if self._machine.stopping:
            raise StartInterrupted("nothing is served: a stop was requested")
        if self.gate is not None:
            raise SettingsError("s.http was called twice; mount the second application in the first")
        if draining not in (503, 200):
            raise SettingsError(f"s.http readiness_while_draining: got {draining!r}, takes 503 or 200")
        # What a user may pass without a type checker.
        if type(port) is not int or not 0 <= port <= 65535:
            raise SettingsError(f"s.http port: got {port!r}, takes a whole number from 0 to 65535")
        if type(host) is not str:
            raise SettingsError(f"s.http host: got {host!r}, takes a text")
        routes: dict[str, AsgiApp] = {}
        for observer in self._definition.observers:
            if isinstance(observer, ServesRoutes):
                routes.update(observer.routes)
        stop = HttpStop(self._now)
        self.gate = gate = Gate(
            app,
            self._readiness,
            routes,
            stop=stop,
            tell=self._telling.tell,
            enter=lambda: critical_sections.enter(self._sections),
            readiness_while_draining=draining,
        )
        if self._mount is not None:
            self.http = self._mount(gate, app)
            self._machine.serving()
            return self.http.port
        config = configured(gate, settings)
        self.http = server = HttpServer(gate, bind(host, port), config, settings.get("backlog"))
        self._machine.serving()
        self._spawn(self._serve(server), "http server")
        return server.port

    def register(self, worker: Worker, terms: Terms) -> None:
        terms = terms.for_worker(worker)
        ask = terms.ask()
        self._machine.members.register(ask)
        on_drain = terms.on_drain or "finish"
        # What may be torn is not abandoned when it is: a worker of the package asks its own setting, which
        # `s.run(..., on_drain="cancel")` does not reach.
        abandon = self._tear if on_drain == "cancel" else self._reporting.abandon
        token = StopToken(ask.name, self._now, self._telling.tell, abandon, self._machine.budget.bound_of(ask))
        self.workers[ask.name] = RunningWorker(worker, token, on_drain, terms.restart, terms.hand_back)
        if isinstance(worker, ShowsProgress):
            self._readiness.watch(ask.name, worker)

    def _tear(self, worker: str, what: str, count: int) -> None:
        log.info("worker %s: %d %s torn, as its on_drain says", worker, count, what)

    def _unavailable(self, event: ev.ResourceUnavailable) -> None:
        self._readiness.explain(f"{event.resource} is not available: {event.error}")
        self._telling.tell(event)

    # The start-up function itself.

    async def _run(self) -> None:
        _starts.set(self)
        try:
            await self._definition.start(Service(self))
            self._machine.members.check_workers()
            await self._open_workers_resources()
            await asyncio.sleep(0)  # likewise: no worker begins behind a signal
        except (asyncio.CancelledError, StartInterrupted) as error:
            if not self._machine.stopping:
                self._machine.stop(self._now(), "the start was cancelled", failed=True)
                self._reporting.start_error = error
        except BaseException as error:  # noqa: BLE001 - SystemExit from a library must not skip the closing
            self._reporting.start_error = error
            self._tell_failed(error)
            self._reporting.errors.append(f"start: {line_of(error)}")
            self._machine.stop(self._now(), f"start failed: {line_of(error)}", failed=True)
        self._machine.start_ended()
        self._turn()

    def _never_ran(self, start: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never runs, and so nobody else says that the start is over.
        if start.cancelled():
            self._machine.start_ended()
            self._turn()

    def _tell_failed(self, error: BaseException) -> None:
        if isinstance(error, SettingsError):
            log.error("%s cannot start: %s", self.name, error)
            self._log_observer.hushed = not self.resources and self.http is None
        elif isinstance(error, QuiesceError):
            # Ours say what to do; a traceback would bury it.
            log.error("%s cannot start: %s", self.name, error)
        else:
            log.exception("%s cannot start", self.name)

    async def _open_workers_resources(self) -> None:
        # None begins before everything is open, so what workers bring is opened at the end of the start.
        for worker in [w.worker for w in self.workers.values()]:
            if isinstance(worker, NeedsResources):
                for resource in worker.resources:
                    if id(resource) not in self._opened:
                        await self.open(resource, None, None)

    async def _serve(self, http: HttpServer) -> None:
        try:
            await http.start()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # uvicorn ends a bad start by SystemExit
            log.exception("the HTTP server failed")
            self._reporting.errors.append(f"http: {line_of(error)}")
            self.stop(f"HTTP server failed: {line_of(error)}", failed=True)
