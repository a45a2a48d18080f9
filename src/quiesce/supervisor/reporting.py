"""Collects what a shutdown leaves behind, and writes its report."""

from quiesce.errors import SettingsError
from quiesce.lifecycle import events as ev
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.plan import Plan
from quiesce.lifecycle.report import Abandoned, ExitCode, ShutdownReport, compose
from quiesce.supervisor.telling import LogObserver, Telling, write_report


class Reporting:
    """The report of one service, as far as it goes at any moment."""

    def __init__(self, service: str, machine: Machine, telling: Telling, log: LogObserver) -> None:
        self.errors: list[str] = []
        self.start_error: BaseException | None = None
        self._service = service
        self._machine = machine
        self._telling = telling
        self._log = log
        self._abandoned: list[Abandoned] = []

    def abandon(self, worker: str, what: str, count: int) -> None:
        """Work that had begun was left unfinished."""
        self._abandoned.append(Abandoned(worker, what, count))
        self._telling.tell(ev.WorkAbandoned(worker, what, count))

    def make(self, now: float) -> ShutdownReport:
        """Composes the report, writes it to the log and tells the observers."""
        report = self._compose(now)
        write_report(report, hushed=self._log.hushed)
        self._telling.tell(ev.ShutdownEnded(report.reason, report.seconds, report.exit_code))
        return report

    def make_late(self, now: float) -> None:
        """For the hard deadline, on its thread: as far as it goes, and the process ends right after it."""
        if self._machine.plan is None:
            self._machine.plan = Plan.at(self._machine.budget, now)
        write_report(self._compose(now).with_exit_code(ExitCode.HARD_DEADLINE))

    def _compose(self, now: float) -> ShutdownReport:
        report = compose(self._service, self._machine, now, self._abandoned, self.errors)
        if isinstance(self.start_error, SettingsError):
            return report.with_exit_code(ExitCode.BAD_CONFIGURATION)
        return report


def line_of(error: BaseException) -> str:
    """An error in one line: its kind and what it says."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
