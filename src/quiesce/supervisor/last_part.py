"""The part `report`: ends what the user's code left running, writes the report, flushes the telemetry."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Observer
from quiesce.lifecycle.report import ShutdownReport
from quiesce.supervisor.closers import Closers
from quiesce.supervisor.context_resources import being_undone
from quiesce.supervisor.flushing import flush
from quiesce.supervisor.hang import HangReport
from quiesce.supervisor.reporting import Reporting
from quiesce.supervisor.resources import left_behind
from quiesce.supervisor.strays import Task, end_strays

log = logging.getLogger("quiesce.supervisor")

SETTLING = 0.1
"""Seconds for the last closer's first steps, where the part has no time left."""


class LastPart:
    """The last part of one shutdown. `report` is there once it was made.

    Args:
        closers: are waited for before anything else is cancelled: one of them may just have been called.
        known: the tasks that are no strays: the service's own, and the requests in flight.
        own_process: whether all other tasks of the loop are to end with the service.
        turn: is called when the part is over.
    """

    def __init__(
        self,
        machine: Machine,
        reporting: Reporting,
        hangs: HangReport,
        closers: Closers,
        observers: Iterable[Observer],
        known: Callable[[], Collection[Task]],
        turn: Callable[[], None],
        *,
        own_process: bool,
    ) -> None:
        self.report: ShutdownReport | None = None
        self._machine = machine
        self._reporting = reporting
        self._hangs = hangs
        self._closers = closers
        self._observers = observers
        self._known = known
        self._turn = turn
        self._own_process = own_process
        self._host = asyncio.current_task()
        self._now = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Within its bound."""
        until = self._machine.parts[Part.REPORT].until
        try:
            await self._end_what_runs(until)
        except Exception:
            # Better a report without that than none.
            log.exception("what still runs could not be told")
        self.report = self._reporting.make(self._now())
        try:
            # A little is kept, so that what hangs there is left inside the bound.
            await flush(self._observers, until.remaining(self._now()) * 0.9)
        finally:
            self._machine.reported()
            self._turn()

    async def _end_what_runs(self, until: Deadline) -> None:
        await self._closers.settled(max(SETTLING, until.remaining(self._now()) / 4))
        if self._own_process:
            known = {*self._known(), *left_behind(), *being_undone(), *(() if self._host is None else (self._host,))}
            for task in await end_strays(known, until.remaining(self._now()) / 2):
                self._reporting.will_not_end(self._hangs.stray(task))
        self._reporting.still_running(self._hangs.at_the_end())

    def run_late(self) -> None:
        """On the thread of the hard deadline: only the report, as far as it goes."""
        self._reporting.make_late(self._now(), self._hangs.everything())
