"""Drives one machine: does what it decides, and tells it what came of that.

Every input is followed by `_turn`, which does everything that is due in the same step of the loop. So
between a signal and the 503 there is no await, and no worker can begin an iteration in between.
"""

import asyncio
import contextvars
import logging
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from quiesce.errors import QuiesceError, SettingsError, StartInterrupted
from quiesce.lifecycle import commands as do
from quiesce.lifecycle import events as ev
from quiesce.lifecycle.backoff import Backoff
from quiesce.lifecycle.machine import Decision, Machine
from quiesce.lifecycle.phases import Part, Phase
from quiesce.lifecycle.ports import NeedsResources, Observer, Resource, ShowsProgress, Worker
from quiesce.lifecycle.report import ShutdownReport
from quiesce.lifecycle.watches import What
from quiesce.supervisor import sections as critical_sections
from quiesce.supervisor.definition import ServiceDefinition
from quiesce.supervisor.flushing import flush
from quiesce.supervisor.hang import HangReport
from quiesce.supervisor.hard_deadline import HardDeadline
from quiesce.supervisor.health import AsgiApp, Gate, HttpPart, Mount, ReadinessWhileDraining, ServesRoutes
from quiesce.supervisor.http import HttpServer
from quiesce.supervisor.http_listener import bind
from quiesce.supervisor.members import RunningWorker, Terms, never_torn
from quiesce.supervisor.readiness import Readiness
from quiesce.supervisor.reporting import Reporting, line_of
from quiesce.supervisor.request_stop import HttpStop
from quiesce.supervisor.resources import as_resource, close_bounded, left_behind, open_with_patience
from quiesce.supervisor.service import Service
from quiesce.supervisor.stop import StopToken
from quiesce.supervisor.strays import end_strays
from quiesce.supervisor.systemd import from_environment as systemd_observer
from quiesce.supervisor.telling import LogObserver, Telling
from quiesce.supervisor.working import Working

log = logging.getLogger("quiesce.supervisor")


class Runner:
    """One life of one service, on the running loop. `hard_deadline` False: the process is somebody else's.

    `mount`: takes the application in place of a server of ours, where another one serves it.
    """

    def __init__(self, definition: ServiceDefinition, *, hard_deadline: bool, mount: Mount | None = None) -> None:
        self.definition = definition
        self.machine = Machine(definition.budget)
        self._log_observer = LogObserver(definition.name)
        systemd = systemd_observer() if hard_deadline else None
        own: list[Observer] = [self._log_observer, *([] if systemd is None else [systemd])]
        self.telling = Telling([*own, *definition.observers])
        self.readiness = Readiness(self.telling.tell)
        self._reporting = Reporting(
            definition.name, self.machine, self.telling, self._log_observer, own_process=hard_deadline
        )
        self.report: ShutdownReport | None = None
        self.running: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopped: asyncio.Future[ShutdownReport] = asyncio.get_running_loop().create_future()
        self.http: HttpPart | None = None
        self.gate: Gate | None = None
        self._mount = mount
        self._loop = asyncio.get_running_loop()
        self._hard_deadline = HardDeadline(self._report_late) if hard_deadline else None
        self._sections = critical_sections.Sections(
            self._section_ended, self._loop.time, lambda: self.machine.sections_until
        )
        # What the service's own tasks see, and nobody else's: a host outlives us, and has sections of its own.
        self._context = contextvars.copy_context()
        self._context.run(critical_sections.enter, self._sections)
        self._thread = threading.get_ident()
        self._working = Working(
            self.machine,
            self.telling,
            self._reporting,
            self.readiness,
            self._sections,
            self._spawn,
            self._worker_ended,
        )
        self._workers: dict[str, RunningWorker] = {}
        self._resources: dict[str, Resource[Any]] = {}
        self._opened: set[int] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closers: dict[str, asyncio.Task[None]] = {}
        self._start: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turning = self._again = self._turn_is_due = False
        self._steps = 0
        self._host = asyncio.current_task()
        self._hangs = HangReport(
            self.machine,
            self._workers,
            self._sections,
            self._resources,
            self._closers,
            lambda: self._start,
            lambda: {} if self.gate is None else self.gate.in_flight,
            self._now,
        )

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
        if self.machine.stopping:
            self.machine.start_ended()
        else:
            self._start = self._spawn(self._run_start(), f"start {self.definition.name}")
            self._start.add_done_callback(self._start_never_ran)
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

    def tell_where(self) -> None:
        """Writes to the log what runs now, and where it stands: for a SIGQUIT."""
        found = self._hangs.everything()
        log.info("%s is %s; %d things run", self.name, self.machine.phase.value, len(found))
        self._reporting.still_running(found)

    async def open(self, thing: Any, name: str | None, part: Part | None) -> Any:
        resource = as_resource(thing, name, part)
        # A signal that came since the last await is heard here, and not behind the beginning of the next opening.
        await asyncio.sleep(0)
        if not self.machine.opening(resource.name, resource.part):
            raise StartInterrupted(f"{resource.name} is not opened: a stop was requested")
        began = self._now()
        try:
            with critical_sections.outside():
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

    def serve(self, app: Any, host: str, port: int, draining: ReadinessWhileDraining, settings: dict[str, Any]) -> int:
        if self.gate is not None:
            raise SettingsError("s.http was called twice; mount the second application in the first")
        if draining not in (503, 200):
            raise SettingsError(f"s.http readiness_while_draining: got {draining!r}, takes 503 or 200")
        routes: dict[str, AsgiApp] = {}
        for observer in self.definition.observers:
            if isinstance(observer, ServesRoutes):
                routes.update(observer.routes)
        stop = HttpStop(self._loop.time)
        self.gate = gate = Gate(
            app,
            self.readiness,
            routes,
            stop=stop,
            tell=self.telling.tell,
            enter=lambda: critical_sections.enter(self._sections),
            readiness_while_draining=draining,
        )
        if self._mount is not None:
            self.http = self._mount(gate, app)
            self.machine.serving()
            return self.http.port
        self.http = server = HttpServer(gate, bind(host, port), settings)
        self.machine.serving()
        self._spawn(self._serve(server), "http server")
        return server.port

    def register(self, worker: Worker, terms: Terms) -> None:
        terms = terms.for_worker(worker)
        ask = terms.ask()
        self.machine.register(ask)
        on_drain = terms.on_drain or "finish"
        # What may be torn is not abandoned when it is: a worker of the package asks its own setting, which
        # `s.run(..., on_drain="cancel")` does not reach.
        abandon = self._tear if on_drain == "cancel" else self._reporting.abandon
        token = StopToken(ask.name, self._loop.time, self.telling.tell, abandon)
        self._workers[ask.name] = RunningWorker(worker, token, on_drain, terms.restart, terms.hand_back)
        if isinstance(worker, ShowsProgress):
            self.readiness.watch(ask.name, worker)

    def _tear(self, worker: str, what: str, count: int) -> None:
        log.info("worker %s: %d %s torn, as its on_drain says", worker, count, what)

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
                for decision in self._decide():
                    self._perform(decision)
        finally:
            self._turning = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at = self.machine.wake_at
        if self.machine.phase is not Phase.STOPPED and wake_at is not None:
            self._timer = self._loop.call_at(wake_at, self._turn)

    def _decide(self) -> list[Decision]:
        # One act for threads: one that begins a section is either counted here, or refused from here on.
        with self._sections.lock:
            self.machine.sections_open(self._sections.count)
            decisions = self.machine.decide(self._now())
            if self.machine.phase in (Phase.CLOSING, Phase.STOPPED):
                self._sections.close()
        return decisions

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
                    self._spawn(self._working.run(name, worker), f"supervise {name}")
            case do.FireStop(worker=name, deadline=deadline):
                self._workers[name].told_to_stop(self.machine.reason or "", deadline)
            case do.AbortWorker(worker=name, cause=cause):
                self._look_at_aborted(What.WORKER, name)
                self._workers[name].abort(cause)
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
                self._look_at_aborted(What.HTTP)
                for name, count in Counter(self.http.abort() if self.http is not None else ()).items():
                    self._reporting.abandon("http", name, count)
            case do.AbortSections():
                self._look_at_aborted(What.SECTIONS)
                for name in self._sections.abort():
                    self._reporting.abandon(name, "critical section", 1)
            case do.CloseResource(resource=name):
                self._closers[name] = self._spawn(self._close(decision), f"close {name}")
            case do.LookAt(what=what, name=name, share=share):
                self._look(what, name, share)
            case do.GiveUpCloser(resource=name):
                self._look(What.CLOSER, name, 1.0)
                self._closers[name].cancel("its time is over")
                self._tell_closed(name)
            case do.MakeReport():
                self._spawn(self._make_report(), "report")

    # Tasks of the service.

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run_start(self) -> None:
        try:
            await self.definition.start(Service(self))
            self.machine.check_workers()
            await self._open_workers_resources()
            await asyncio.sleep(0)  # likewise: no worker begins behind a signal
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

    def _start_never_ran(self, start: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step never runs, and so nobody else says that the start is over.
        if start.cancelled():
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

    async def _close(self, command: do.CloseResource) -> None:
        critical_sections.enter(None)  # a closer does not wait for the sections, itself among them
        outcome, closed = await close_bounded(self._resources[command.resource], command.deadline)
        late = self.machine.resources[command.resource].outcome is not None
        self.machine.closed(command.resource, self._now(), outcome, closed.undelivered, closed.detail)
        if outcome == "failed":
            self._reporting.errors.append(f"closing {command.resource}: {closed.detail}")
        if not late:
            self._tell_closed(command.resource)
        self._turn()

    async def _make_report(self) -> None:
        """Within its bound: what the user's code left running, the report, the telemetry."""
        until = self.machine.parts[Part.REPORT].until
        if self._hard_deadline is not None:
            for task in await end_strays(self._known_tasks(), until.remaining(self._now()) / 2):
                self._reporting.abandon(f"task {task.get_name()}", "task that did not end when cancelled", 1)
                self._reporting.still_running([self._hangs.stray(task)])
        self._reporting.still_running(self._hangs.at_the_end())
        self.report = self._reporting.make(self._now())
        # A little is kept, so that what hangs there is left inside the bound.
        await flush(self.definition.observers, until.remaining(self._now()) * 0.9)
        self.machine.reported()
        self._turn()

    def _known_tasks(self) -> set[asyncio.Task[Any]]:
        """Those that have been ended, or are told of, already; and our host's."""
        known = {*self._tasks, *left_behind(), *(self.gate.in_flight if self.gate is not None else ())}
        return known if self._host is None else known | {self._host}

    def _report_late(self) -> None:
        """On the thread of the hard deadline."""
        self._reporting.make_late(self._now(), self._hangs.everything())

    def _look_at_aborted(self, what: What, name: str = "") -> None:
        """Before the abort moves it: where it stood. Its bound is over, unless somebody signalled again."""
        self._look(what, name, None if self.machine.aborting else 1.0)

    def _look(self, what: What, name: str, share: float | None) -> None:
        self._reporting.still_running(self._hangs.look(what, name, share))

    # Small answers.

    def _http_ended(self) -> None:
        self.machine.http_ended()
        self._turn()

    def _worker_ended(self, failed: bool) -> None:
        if failed:
            self._turn()
        elif self.machine.stopping:
            self._turn_soon()

    def _turn_soon(self) -> None:
        """One turn for all that comes in this step of the loop: a thousand workers may end in it."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._due_turn)

    def _due_turn(self) -> None:
        self._turn_is_due = False
        self._turn()

    def _section_ended(self) -> None:
        if not self.machine.stopping:
            return
        if threading.get_ident() == self._thread:
            self._turn_soon()
            return
        try:
            self._loop.call_soon_threadsafe(self._turn_soon)
        except RuntimeError:
            # The loop is closed: the thread was left behind, and the service is over.
            return

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
        for worker in self._workers.values():
            if never_torn(worker.worker) and worker.task is not None:
                # Only the wait for a thread that was left behind; the thread itself is nobody's any more.
                worker.task.cancel("the service has stopped")
        assert self.report is not None
        self.stopped.set_result(self.report)
