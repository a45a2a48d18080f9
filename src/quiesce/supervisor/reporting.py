"""Collects what a shutdown leaves behind, and writes its report."""

import logging
from collections.abc import Callable, Iterable, Mapping

from quiesce.errors import SettingsError
from quiesce.lifecycle import events as ev
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.plan import Plan
from quiesce.lifecycle.ports import TellsFigures
from quiesce.lifecycle.report import Abandoned, ExitCode, ShutdownReport, compose
from quiesce.supervisor import termination
from quiesce.supervisor.telling import LogObserver, Telling, write_report

log = logging.getLogger("quiesce.supervisor")


class Reporting:
    """The report of one service, as far as it goes at any moment.

    Args:
        figures: what its workers say of themselves.
        own_process: whether the process is the service's, and with it the termination message.
    """

    def __init__(
        self,
        service: str,
        machine: Machine,
        telling: Telling,
        log: LogObserver,
        figures: Callable[[], Mapping[str, str]] = dict,
        *,
        own_process: bool = False,
    ) -> None:
        self.errors: list[str] = []
        self.start_error: BaseException | None = None
        self._service = service
        self._machine = machine
        self._telling = telling
        self._log = log
        self._figures = figures
        self._own_process = own_process
        self._abandoned: list[Abandoned] = []
        self._will_not_end = False
        self._hung: dict[tuple[str, str], ev.StillRunning] = {}

    def abandon(self, worker: str, what: str, count: int) -> None:
        """Work that had begun was left unfinished."""
        self._abandoned.append(Abandoned(worker, what, count))
        self._telling.tell(ev.WorkAbandoned(worker, what, count))

    def will_not_end(self, task: ev.StillRunning) -> None:
        """A task that nobody owns goes on after its cancel: a loop that waits for its tasks would never end."""
        self._will_not_end = True
        self.abandon(f"task {task.name}", "task that did not end when cancelled", 1)
        self.still_running([task])

    def still_running(self, found: Iterable[ev.StillRunning]) -> None:
        """Tells what hangs, and keeps for the report what hung when its bound was over."""
        for hang in found:
            if hang.share is not None and hang.share >= 1.0:
                self._hung[hang.what, hang.name] = hang
            self._telling.tell(hang)

    def make(self, now: float) -> ShutdownReport:
        """Composes the report, writes it to the log and tells the observers."""
        report = self._compose(now)
        write_report(report, hushed=self._log.hushed)
        self._write_termination_message(report)
        self._telling.tell(ev.ShutdownEnded(report.reason, report.seconds, report.exit_code))
        return report

    def make_late(self, now: float, hung: Iterable[ev.StillRunning] = ()) -> None:
        """For the hard deadline, on its thread: as far as it goes, and the process ends right after it."""
        if self._machine.plan is None:
            self._machine.plan = Plan.at(self._machine.budget, now)
        try:
            self._hung.update({(hang.what, hang.name): hang for hang in hung})
        except Exception:
            # Tasks and stacks are read while they may move. Better a report without them than none.
            log.exception("what hangs could not be told")
        report = self._compose(now).with_exit_code(ExitCode.HARD_DEADLINE)
        # The file first: whoever reads the log may be what hangs.
        self._write_termination_message(report)
        write_report(report)

    def _compose(self, now: float) -> ShutdownReport:
        hung = list(self._hung.values())
        report = compose(self._service, self._machine, now, self._abandoned, self.errors, hung, self._figures())
        if isinstance(self.start_error, SettingsError):
            return report.with_exit_code(ExitCode.BAD_CONFIGURATION)
        return report.with_exit_code(ExitCode.HARD_DEADLINE) if self._will_not_end else report

    def _write_termination_message(self, report: ShutdownReport) -> None:
        if self._own_process:
            termination.write(termination.message_of(report))


def line_of(error: BaseException) -> str:
    """An error in one line: its kind and what it says."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def figures_of(workers: Mapping[str, object]) -> dict[str, str]:
    """What workers say of themselves, by their names. One that cannot costs no report."""
    told = {}
    for name, worker in workers.items():
        if isinstance(worker, TellsFigures):
            try:
                told[name] = worker.figures()
            except Exception as error:
                log.exception("worker %s could not tell its figures", name)
                told[name] = line_of(error)
    return told
