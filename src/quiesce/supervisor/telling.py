"""Hands the service's events to its observers, and writes them to the log."""

import asyncio
import json
import logging
from collections.abc import Sequence

from quiesce.lifecycle import events as ev
from quiesce.lifecycle.ports import Observer
from quiesce.lifecycle.report import ShutdownReport

log = logging.getLogger("quiesce.service")
report_log = logging.getLogger("quiesce.report")


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
            except Exception:
                log.exception("observer %r failed on %s", observer, type(event).__name__)


class LogObserver:
    """Writes events as log lines. A normal close is never above INFO (R-SHUT-OBS-X1)."""

    def __init__(self, service: str) -> None:
        self._service = service
        self.hushed = False
        """Set when the service never came to life: one line has said why, and the rest would bury it."""

    def observe(self, event: ev.Event) -> None:
        if self.hushed:
            log.debug("%r", event)
            return
        match event:
            case ev.PhaseChanged(phase=phase):
                log.info("%s: %s", self._service, phase.value)
            case ev.ReadinessChanged(ready=ready, reason=reason):
                log.info("readiness: %s (%s)", "ready" if ready else "not ready", reason)
            case ev.SignalReceived(number=number, name=name):
                log.info("received signal %s (%d)", name, number)
            case ev.StopRequested(reason=reason, failed=failed):
                log.log(logging.ERROR if failed else logging.INFO, "stop requested: %s", reason)
            case ev.AbortRequested(reason=reason):
                log.warning("abort requested: %s; work in hand is given up", reason)
            case ev.PartBegan(part=part, bound=bound):
                log.info("shutdown part %s began, at most %.3g s", part.value, bound)
            case ev.PartEnded(part=part, seconds=seconds, overran=overran):
                level = logging.WARNING if overran else logging.INFO
                log.log(
                    level, "shutdown part %s ended in %.3f s%s", part.value, seconds, ", overran" if overran else ""
                )
            case ev.WorkerEnded(worker=worker, outcome=outcome):
                log.log(logging.INFO if outcome == "finished" else logging.WARNING, "worker %s %s", worker, outcome)
            case ev.WorkAbandoned(worker=worker, what=what, count=count):
                log.warning("worker %s left %d %s unfinished", worker, count, what)
            case ev.ResourceOpened(resource=resource, seconds=seconds):
                log.info("opened %s in %.3f s", resource, seconds)
            case ev.ResourceUnavailable(resource=resource, error=error, attempt=attempt, wait=wait):
                log.warning("%s is not available (try %d): %s; next try in %.1f s", resource, attempt, error, wait)
            case ev.ResourceClosed(
                resource=resource, outcome=outcome, seconds=seconds, undelivered=left, detail=detail
            ):
                level = logging.INFO if outcome == "clean" and not left else logging.WARNING
                extra = (f", {left} undelivered" if left else "") + (f" ({detail})" if detail else "")
                log.log(level, "closed %s: %s in %.3f s%s", resource, outcome, seconds, extra)
            case _:
                log.debug("%r", event)


def write_report(report: ShutdownReport, *, hushed: bool = False) -> None:
    """One structured line: the figures a scrape of a process that is going away would miss."""
    level = logging.DEBUG if hushed else logging.INFO if report.exit_code == 0 else logging.WARNING
    report_log.log(level, "shutdown report %s", json.dumps(report.as_dict(), separators=(",", ":")))
