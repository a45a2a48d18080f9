"""Drives one machine: does what it decides, and tells it what came of that.

Every input is followed by `_turn`, which does everything that is due in the same step of the loop. So
between a signal and the 503 there is no await, and no worker can begin an iteration in between.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from quiesce.errors import QuiesceError, SettingsError, StartInterrupted
from quiesce.lifecycle import commands as do
from quiesce.lifecycle import events as ev
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.budget import WorkerBound
from quiesce.lifecycle.machine import Decision, Machine
from quiesce.lifecycle.phases import Part, Phase
from quiesce.lifecycle.ports import NeedsResources, OnDrain, Resource, Worker
from quiesce.lifecycle.report import ShutdownReport
from quiesce.supervisor import sections as critical_sections
from quiesce.supervisor.definition import ServiceDefinition
from quiesce.supervisor.hard_deadline import HardDeadline
from quiesce.supervisor.health import AsgiApp, Gate, ServesRoutes
from quiesce.supervisor.http import HttpServer, bind
from quiesce.supervisor.members import RunningWorker
from quiesce.supervisor.readiness import Readiness
from quiesce.supervisor.reporting import Reporting, line_of
from quiesce.supervisor.resources import as_resource, close_bounded, open_with_patience
from quiesce.supervisor.service import Service
from quiesce.supervisor.stop import StopToken
from quiesce.supervisor.telling import LogObserver, Telling

log = logging.getLogger("quiesce.supervisor")


class Runner:
    """One life of one service, on the running loop. `hard_deadline` False: the process is somebody else's."""

    def __init__(self, definition: ServiceDefinition, *, hard_deadline: bool) -> None:
        self.definition = definition
        self.machine = Machine(definition.budget)
        self._log_observer = LogObserver(definition.name)
        self.telling = Telling([self._log_observer, *definition.observers])
        self.readiness = Readiness(self.telling.tell)
        self._reporting = Reporting(definition.name, self.machine, self.telling, self._log_observer)
        self.report: ShutdownReport | None = None
        self.running: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopped: asyncio.Future[ShutdownReport] = asyncio.get_running_loop().create_future()
        self.http: HttpServer | None = None
        self._loop = asyncio.get_running_loop()
        self._hard_deadline = HardDeadline(lambda: self._reporting.make_late(self._now())) if hard_deadline else None
        self._sections = critical_sections.Sections(self._section_changed)
        self._workers: dict[str, RunningWorker] = {}
        self._resources: dict[str, Resource[Any]] = {}
        self._opened: set[int] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closers: dict[str, asyncio.Task[None]] = {}
        self._start: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turning = self._again = False
        self._steps = 0

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def start_error(self) -> BaseException | None:
        """What the start-up function raised."""
        return self._reporting.start_error

    # Inputs.

    def begin(self) -> None:
        """Starts the service; a stop that was requested before makes it end without ever opening anything."""
        self.telling.attach(self._loop)
        critical_sections.enter(self._sections)
        if self.machine.stopping:
            self.machine.start_ended()
        else:
            self._start = self._spawn(self._run_start(), f"start {self.definition.name}")
        self._turn()

    def signal(self, step: int, number: int) -> None:
        """What a step of the signal ladder means."""
        import signal

        if step <= self._steps:
            return
        self._steps = step
        name = signal.Signals(number).name
        self.telling.tell(ev.SignalReceived(number, name))
        if step == 1:
            self.machine.stop(self._now(), f"received {name}")
        else:
            self.machine.abort(self._now(), f"received {name} again")
        self._turn()

    def stop(self, reason: str, *, within: float | None = None, failed: bool = False) -> None:
        self.machine.stop(self._now(), reason, within=within, failed=failed)
        self._turn()

    def abort(self, reason: str) -> None:
        self.machine.abort(self._now(), reason)
        self._turn()

    async def open(self, thing: Any, name: str | None, part: Part | None) -> Any:
        resource = as_resource(thing, name, part)
        if not self.machine.opening(resource.name, resource.part):
            raise StartInterrupted(f"{resource.name} is not opened: a stop was requested")
        began = self._now()
        try:
            value = await open_with_patience(resource, self.definition.start_limit, Backoff(), self._unavailable)
        except BaseException:
            self.machine.open_failed(resource.name)
            raise
        self._resources[resource.name] = resource
        self._opened.add(id(thing))
        self.machine.opened(resource.name)
        self.telling.tell(ev.ResourceOpened(resource.name, self._now() - began))
        self.readiness.explain("starting")
        return value

    def serve(self, app: Any, host: str, port: int, settings: dict[str, Any]) -> int:
        if self.http is not None:
            raise SettingsError("s.http was called twice; mount the second application in the first")
        routes: dict[str, AsgiApp] = {}
        for observer in self.definition.observers:
            if isinstance(observer, ServesRoutes):
                routes.update(observer.routes)
        self.http = HttpServer(Gate(app, self.readiness, routes), bind(host, port), settings)
        self.machine.serving()
        self._spawn(self._serve(self.http), "http server")
        return self.http.port

    def register(
        self, worker: Worker, name: str | None, bound: float | None, on_drain: OnDrain | None, after: str | None
    ) -> None:
        after = after if after is not None else getattr(worker, "after", None)
        if after not in (None, "http"):
            raise SettingsError(f"worker after: got {after!r}, takes 'http'")
        bound = bound if bound is not None else getattr(worker, "bound", None)
        ask = WorkerBound(name or worker.name, bound, after == "http")
        self.machine.register(ask)
        token = StopToken(ask.name, self._loop.time, self.telling.tell, self._reporting.abandon)
        own: OnDrain = getattr(worker, "on_drain", "finish")
        self._workers[ask.name] = RunningWorker(worker, token, on_drain or own)

    # Doing what was decided.

    def _now(self) -> float:
        return self._loop.time()

    def _turn(self) -> None:
        if self._turning:
            self._again = True
            return
        self._turning = True
        try:
            self._again = True
            while self._again:
                self._again = False
                for decision in self.machine.decide(self._now()):
                    self._perform(decision)
        finally:
            self._turning = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at = self.machine.wake_at
        if self.machine.phase is not Phase.STOPPED and wake_at is not None:
            self._timer = self._loop.call_at(wake_at, self._turn)

    def _perform(self, decision: Decision) -> None:
        match decision:
            case ev.PhaseChanged(phase=phase):
                self.readiness.phase = phase
                self.telling.tell(decision)
                if phase is Phase.RUNNING:
                    self.running.set_result(None)
                elif phase is Phase.STOPPED:
                    self._finish()
            case ev.Event():
                self.telling.tell(decision)
            case do.BecomeReady():
                self.readiness.become_ready()
            case do.BecomeNotReady(reason=reason):
                self.readiness.become_not_ready(reason)
            case do.BeginWorkers():
                for name, worker in self._workers.items():
                    worker.task = self._spawn(self._work(name, worker), f"worker {name}")
            case do.FireStop(worker=name, deadline=deadline):
                self._workers[name].told_to_stop(self.machine.reason or "", deadline)
            case do.AbortWorker(worker=name):
                self._workers[name].abort()
            case do.ArmHardDeadline(deadline=deadline):
                if self._hard_deadline is not None:
                    self._hard_deadline.arm(deadline)
            case do.InterruptStart():
                if self._start is not None:
                    self._start.cancel("a stop was requested")
            case do.BeginHttpDrain(deadline=deadline):
                if self.http is not None:
                    self._spawn(self.http.drain(deadline, self._http_ended), "http drain")
            case do.AbortHttp():
                if self.http is not None and (count := self.http.abort()):
                    self._reporting.abandon("http", "requests in flight", count)
            case do.AbortSections():
                for name in self._sections.abort():
                    self._reporting.abandon(name, "critical section", 1)
            case do.CloseResource(resource=name):
                self._closers[name] = self._spawn(self._close(decision), f"close {name}")
            case do.GiveUpCloser(resource=name):
                self._closers[name].cancel("its time is over")
                self._tell_closed(name)
            case do.MakeReport():
                self.report = self._reporting.make(self._now())
                self.machine.reported()
                self._again = True

    # Tasks of the service.

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run_start(self) -> None:
        try:
            await self.definition.start(Service(self))
            await self._open_workers_resources()
        except (asyncio.CancelledError, StartInterrupted) as error:
            if not self.machine.stopping:
                self.machine.stop(self._now(), "the start was cancelled", failed=True)
                self._reporting.start_error = error
        except BaseException as error:  # noqa: BLE001 - SystemExit from a library must not skip the closing
            self._reporting.start_error = error
            self._tell_start_failed(error)
            self._reporting.errors.append(f"start: {line_of(error)}")
            self.machine.stop(self._now(), f"start failed: {line_of(error)}", failed=True)
        self.machine.start_ended()
        self._turn()

    def _tell_start_failed(self, error: BaseException) -> None:
        if isinstance(error, SettingsError):
            log.error("%s cannot start: %s", self.name, error)
            self._log_observer.hushed = not self._resources and self.http is None
        elif isinstance(error, QuiesceError):
            # Ours say what to do; a traceback would bury it.
            log.error("%s cannot start: %s", self.name, error)
        else:
            log.exception("%s cannot start", self.name)

    async def _open_workers_resources(self) -> None:
        # None begins before everything is open, so what workers bring is opened at the end of the start.
        for worker in [w.worker for w in self._workers.values()]:
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

    async def _work(self, name: str, worker: RunningWorker) -> None:
        self.telling.tell(ev.WorkerBegan(name))
        error: str | None = None
        try:
            await worker.worker.run(worker.token)
        except asyncio.CancelledError:
            if not worker.cancelled:
                error = "cancelled by somebody else"
        except BaseException as raised:  # SystemExit in a task would tear the loop down
            error = line_of(raised)
            log.error("worker %s failed", name, exc_info=raised)
            self._reporting.errors.append(f"worker {name}: {error}")
        self.machine.worker_ended(name, self._now(), error)
        state = self.machine.workers[name]
        self.telling.tell(ev.WorkerEnded(name, state.outcome or "finished", state.seconds))
        self._turn()

    async def _close(self, command: do.CloseResource) -> None:
        outcome, closed = await close_bounded(self._resources[command.resource], command.deadline)
        late = self.machine.resources[command.resource].outcome is not None
        self.machine.closed(command.resource, self._now(), outcome, closed.undelivered, closed.detail)
        if outcome == "failed":
            self._reporting.errors.append(f"closing {command.resource}: {closed.detail}")
        if not late:
            self._tell_closed(command.resource)
        self._turn()

    # Small answers.

    def _http_ended(self) -> None:
        self.machine.http_ended()
        self._turn()

    def _section_changed(self, change: int) -> None:
        if change > 0:
            self.machine.section_began()
        else:
            self.machine.section_ended()
            if self.machine.stopping:
                self._turn()

    def _unavailable(self, event: ev.ResourceUnavailable) -> None:
        self.readiness.explain(f"{event.resource} is not available: {event.error}")
        self.telling.tell(event)

    def _tell_closed(self, name: str) -> None:
        r = self.machine.resources[name]
        began = r.began if r.began is not None else self._now()
        seconds = (r.ended if r.ended is not None else self._now()) - began
        self.telling.tell(ev.ResourceClosed(name, r.part, r.outcome or "", seconds, r.undelivered, r.detail))

    def _finish(self) -> None:
        if not self.running.done():
            self.running.cancel()
        assert self.report is not None
        self.stopped.set_result(self.report)
