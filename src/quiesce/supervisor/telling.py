"""Hands the service's events to its observers, and writes them to the log."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Sequence

from quiesce.lifecycle import events as ev
from quiesce.lifecycle.ports import Observer
from quiesce.lifecycle.report import ShutdownReport, line_of_hang
from quiesce.supervisor.event_fields import fields_of

log = logging.getLogger("quiesce.service")
report_log = logging.getLogger("quiesce.report")

FIELDS = "event_fields"
"""The attribute of a log record that has the fields of an event. A formatter that writes JSON shows them."""

NEARLY = 0.9
"""From this share of a bound on, one that still runs is worth a warning."""


class Telling:
    """Tells every observer, on the loop's thread. An observer that fails is logged and hurts nobody."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def tell(self, event: ev.Event) -> None:
        """From any thread."""
        try:
            inside = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            inside = False
        if inside or self._loop is None:
            self._tell(event)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, event)

    def _tell(self, event: ev.Event) -> None:
        for observer in self._observers:
            try:
                observer.observe(event)
            except BaseException:
                # SystemExit and CancelledError as well: it runs in the middle of a decision, or of the loop's turn.
                # Nor may the log's own failure surface there, as where standard error is closed.
                with contextlib.suppress(Exception):
                    log.exception("observer %r failed on %s", observer, type(event).__name__)


class LogObserver:
    """Writes events as log lines, with their fields beside. A normal close is never above INFO (R-SHUT-OBS-X1)."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._unspoken: set[type[ev.Event]] = set()
        self.hushed = False
        """Set when the service never came to life: one line has said why, and the rest would bury it."""

    def observe(self, event: ev.Event) -> None:
        kind = type(event)
        if kind in self._unspoken and not log.isEnabledFor(logging.DEBUG):
            # A busy relay tells a thousand of these a second.
            return
        line = None if self.hushed else self._line(event)
        if line is None and not self.hushed:
            self._unspoken.add(kind)
        level = logging.DEBUG if line is None else line[0]
        if log.isEnabledFor(level):
            log.log(level, "%s", repr(event) if line is None else line[1], extra={FIELDS: fields_of(event)})

    def _line(self, event: ev.Event) -> tuple[int, str] | None:
        """Level and text; None for what is of no interest to people."""
        match event:
            case ev.PhaseChanged(phase=phase):
                return logging.INFO, f"{self._service}: {phase.value}"
            case ev.ReadinessChanged(ready=ready, reason=reason):
                return logging.INFO, f"readiness: {'ready' if ready else 'not ready'} ({reason})"
            case ev.SignalReceived(number=number, name=name):
                return logging.INFO, f"received signal {name} ({number})"
            case ev.StopRequested(reason=reason, failed=failed, available=available, scale=scale):
                text = f"stop requested: {reason}"
                if scale < 1:
                    text += f"; only {available:.3g} s are left, so every part gets {scale:.0%} of its bound"
                return logging.ERROR if failed else logging.WARNING if scale < 1 else logging.INFO, text
            case ev.StopHastened(reason=reason, available=available, scale=scale):
                left = f"only {available:.3g} s are left, so every part gets {scale:.0%} of its bound"
                return logging.WARNING, f"stop requested again: {reason}; {left}"
            case ev.AbortRequested(reason=reason):
                return logging.WARNING, f"abort requested: {reason}; work in hand is given up"
            case ev.PartBegan(part=part, bound=bound):
                return logging.INFO, f"shutdown part {part.value} began, at most {bound:.3g} s"
            case ev.PartEnded(part=part, seconds=seconds, overran=overran):
                text = f"shutdown part {part.value} ended in {seconds:.3f} s{', overran' if overran else ''}"
                return logging.WARNING if overran else logging.INFO, text
            case ev.StillRunning(share=share):
                # At half of its bound nothing is wrong yet.
                level = logging.INFO if share is None or share < NEARLY else logging.WARNING
                over = "" if share is None else f"{share:.0%} of its bound is over, "
                return level, f"{over}still running: {line_of_hang(event)}"
            case _:
                return self._line_of_member(event)

    @staticmethod
    def _line_of_member(event: ev.Event) -> tuple[int, str] | None:
        match event:
            case ev.WorkerEnded(worker=worker, outcome=outcome):
                return logging.INFO if outcome == "finished" else logging.WARNING, f"worker {worker} {outcome}"
            case ev.WorkerRestarted(worker=worker, error=error, failures=failures, wait=wait):
                text = f"worker {worker} failed ({failures} in its window): {error}; it begins again in {wait:.1f} s"
                return logging.WARNING, text
            case ev.WorkAbandoned(worker=worker, what=what, count=count):
                return logging.WARNING, f"worker {worker} left {count} {what} unfinished"
            case ev.ResourceOpened(resource=resource, seconds=seconds):
                return logging.INFO, f"opened {resource} in {seconds:.3f} s"
            case ev.ResourceUnavailable(resource=resource, error=error, attempt=attempt, wait=wait):
                text = f"{resource} is not available (try {attempt}): {error}; next try in {wait:.1f} s"
                return logging.WARNING, text
            case ev.ResourceClosed(resource=resource, outcome=outcome, seconds=seconds, undelivered=left):
                level = logging.INFO if outcome == "clean" and not left else logging.WARNING
                extra = (f", {left} undelivered" if left else "") + (f" ({event.detail})" if event.detail else "")
                return level, f"closed {resource}: {outcome} in {seconds:.3f} s{extra}"
            case _:
                return None


def write_report(report: ShutdownReport, *, hushed: bool = False) -> None:
    """One structured line: the figures a scrape of a process that is going away would miss."""
    level = logging.DEBUG if hushed else logging.INFO if report.exit_code == 0 else logging.WARNING
    values = report.as_dict()
    fields = {"message": "shutdown report", "event": "shutdown_report", "report": values}
    with contextlib.suppress(OSError, ValueError):
        # A log that cannot be written, as where standard error is closed, must not keep the process from its end.
        report_log.log(level, "shutdown report %s", json.dumps(values, separators=(",", ":")), extra={FIELDS: fields})
