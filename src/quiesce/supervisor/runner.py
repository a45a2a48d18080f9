"""Drives one machine: does what it decides, and tells it what came of that.

`turns` says when, `starting` what the start-up function brings, `working` how a worker lives, `closers` and
`last_part` how all of it ends.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from typing import Any

from quiesce.lifecycle import commands as do
from quiesce.lifecycle import events as ev
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.phases import Phase
from quiesce.lifecycle.ports import Observer
from quiesce.lifecycle.report import ShutdownReport
from quiesce.lifecycle.watches import What
from quiesce.supervisor.closers import Closers
from quiesce.supervisor.definition import ServiceDefinition
from quiesce.supervisor.hang import HangReport
from quiesce.supervisor.health import Mount
from quiesce.supervisor.last_part import LastPart
from quiesce.supervisor.members import never_torn
from quiesce.supervisor.readiness import Readiness
from quiesce.supervisor.reporting import Reporting, figures_of, line_of
from quiesce.supervisor.sections import Sections
from quiesce.supervisor.service_tasks import ServiceTasks
from quiesce.supervisor.signalled import Signalled
from quiesce.supervisor.starting import Starting
from quiesce.supervisor.systemd import from_environment as systemd_observer
from quiesce.supervisor.telling import LogObserver, Telling
from quiesce.supervisor.turns import Turns
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
            definition.name,
            self.machine,
            self.telling,
            self._log_observer,
            lambda: figures_of({name: running.worker for name, running in self.start.workers.items()}),
            own_process=hard_deadline,
        )
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self.running: asyncio.Future[None] = self._loop.create_future()
        self.stopped: asyncio.Future[ShutdownReport] = self._loop.create_future()
        self._sections = Sections(
            lambda: self._turns.section_ended(), self._now, lambda: self.machine.sections_until, self._section_failed
        )
        self._turns = Turns(self.machine, self._sections, self._perform, self.failed)
        self.tasks = ServiceTasks(self._sections, kept=not hard_deadline)
        self._spawn = self.tasks.spawn
        self.start = Starting(
            definition,
            self.machine,
            self.telling,
            self.readiness,
            self._reporting,
            self._log_observer,
            self._sections,
            self._spawn,
            self.stop,
            self._turns.now,
            mount,
        )
        self._working = Working(
            self.machine,
            self.telling,
            self._reporting,
            self.readiness,
            self._sections,
            self._spawn,
            self._turns.worker_ended,
        )
        self._closers = Closers(
            self.machine, self.telling, self._reporting, self.start.resources, self._spawn, self._turns.now
        )
        self._hangs = HangReport(
            self.machine,
            self.start.workers,
            self._sections,
            self.start.resources,
            self._closers.tasks,
            lambda: self.start.tasks,
            lambda: {} if self.start.gate is None else self.start.gate.in_flight,
            self._now,
        )
        self._last_part = LastPart(
            self.machine,
            self._reporting,
            self._hangs,
            self._closers,
            definition.observers,
            self._known_tasks,
            self._turns.now,
            own_process=hard_deadline,
        )
        self.signalled = Signalled(
            self.machine, self.telling, self._last_part.run_late, self._turns.now, own_process=hard_deadline
        )

    @property
    def start_error(self) -> BaseException | None:
        """What the start-up function raised."""
        return self._reporting.start_error

    # Inputs.

    def begin(self) -> None:
        """Starts the service; a stop that was requested before makes it end without ever opening anything."""
        self.telling.attach(self._loop)
        self.tasks.begin()
        self.start.begin()
        self._turns.now()

    def stop(self, reason: str, *, within: float | None = None, failed: bool = False) -> None:
        self.machine.stop(self._now(), reason, within=within, failed=failed)
        self._turns.now()

    def abort(self, reason: str) -> None:
        self.machine.abort(self._now(), reason)
        self._turns.now()

    def failed(self, what: str, error: BaseException) -> None:
        """Something failed that nobody waits for."""
        self._reporting.errors.append(f"{what}: {line_of(error)}")
        self.stop(f"{what} failed: {line_of(error)}", failed=True)

    def tell_where(self) -> None:
        """Writes to the log what runs now, and where it stands: for a SIGQUIT."""
        found = self._hangs.everything()
        log.info("%s is %s; %d things run", self.definition.name, self.machine.phase.value, len(found))
        self._reporting.still_running(found)

    # Doing what was decided.

    def _perform(self, decision: do.Decision) -> None:
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
                for name, worker in self.start.workers.items():
                    self._spawn(self._working.run(name, worker), f"supervise {name}")
            case do.FireStop(worker=name, deadline=deadline):
                self.start.workers[name].told_to_stop(self.machine.reason or "", deadline)
            case do.ShortenBound(worker=name, deadline=deadline):
                self.start.workers[name].token.shorten(deadline)
            case do.ShortenHttp(deadline=deadline):
                if self.start.gate is not None:
                    self.start.gate.stop.shorten(deadline)
            case do.AbortWorker(worker=name, cause=cause):
                self._look_at_aborted(What.WORKER, name)
                self.start.workers[name].abort(cause)
            case do.ArmHardDeadline(deadline=deadline):
                self.signalled.arm_until(deadline)
            case do.InterruptStart():
                self.start.interrupt()
            case do.BeginHttpDrain(deadline=deadline):
                if self.start.http is not None:
                    self._spawn(self.start.http.drain(deadline, self._http_ended), "http drain")
            case do.AbortHttp():
                self._look_at_aborted(What.HTTP)
                for name, count in Counter(self.start.http.abort() if self.start.http is not None else ()).items():
                    self._reporting.abandon("http", name, count)
            case do.AbortSections():
                self._look_at_aborted(What.SECTIONS)
                for name in self._sections.abort():
                    self._reporting.abandon(name, "critical section", 1)
            case do.CloseResource():
                self._closers.call(decision)
            case do.LookAt(what=what, name=name, share=share):
                self._look(what, name, share)
            case do.GiveUpCloser(resource=name):
                self._look(What.CLOSER, name, 1.0)
                self._closers.give_up(name)
            case do.MakeReport():
                self._spawn(self._last_part.run(), "report")

    # Tasks of the service.

    def _known_tasks(self) -> Collection[asyncio.Task[Any]]:
        """Those that have been ended, or are told of, already."""
        return {*self.tasks.own, *(() if self.start.gate is None else self.start.gate.in_flight)}

    def _look_at_aborted(self, what: What, name: str = "") -> None:
        """Before the abort moves it: where it stood. Its bound is over, unless somebody signalled again."""
        self._look(what, name, None if self.machine.aborting else 1.0)

    def _look(self, what: What, name: str, share: float | None) -> None:
        self._reporting.still_running(self._hangs.look(what, name, share))

    def _http_ended(self) -> None:
        self.machine.http_ended()
        self._turns.now()

    def _section_failed(self, name: str, error: BaseException) -> None:
        # Before a stop it is the affair of whoever has cancelled the caller, such as a timeout around it.
        if self.machine.stopping:
            self.failed(f"critical section {name}", error)

    def _finish(self) -> None:
        if not self.running.done():
            self.running.cancel()
        for worker in self.start.workers.values():
            if never_torn(worker.worker) and worker.task is not None:
                # Only the wait for a thread that was left behind; the thread itself is nobody's any more.
                worker.task.cancel("the service has stopped")
        self.tasks.end()
        assert self._last_part.report is not None
        self.stopped.set_result(self._last_part.report)
