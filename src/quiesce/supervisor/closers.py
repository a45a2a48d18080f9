"""Calls the closers that the machine names, one after the other, and gives up those whose time is over."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from quiesce.lifecycle import commands as do
from quiesce.lifecycle import events as ev
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.ports import Resource
from quiesce.supervisor import critical as critical_sections
from quiesce.supervisor.reporting import Reporting
from quiesce.supervisor.resources import close_bounded
from quiesce.supervisor.telling import Telling
from quiesce.supervisor.working import Spawn


class Closers:
    """The closers of one service. `tasks`: the task of each closing, by the name of its resource.

    Args:
        turn: is called when a closer came back.
    """

    def __init__(
        self,
        machine: Machine,
        telling: Telling,
        reporting: Reporting,
        resources: Mapping[str, Resource[Any]],
        spawn: Spawn,
        turn: Callable[[], None],
    ) -> None:
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._machine = machine
        self._telling = telling
        self._reporting = reporting
        self._resources = resources
        self._spawn = spawn
        self._turn = turn
        self._loop = asyncio.get_running_loop()

    def call(self, command: do.CloseResource) -> None:
        self.tasks[command.resource] = self._spawn(self._close(command), f"close {command.resource}")

    def give_up(self, name: str) -> None:
        """Cancels it, behind its first step: a task that is cancelled before that never calls its closer."""
        self._loop.call_soon(self.tasks[name].cancel, "its time is over")
        self._tell_closed(name)

    async def settled(self, seconds: float) -> None:
        """Waits until those that were given up have been called and cancelled: a few steps of the loop."""
        if self.tasks:
            await asyncio.wait(self.tasks.values(), timeout=seconds)

    async def _close(self, command: do.CloseResource) -> None:
        critical_sections.enter(None)  # a closer does not wait for the sections, itself among them
        outcome, closed = await close_bounded(self._resources[command.resource], command.deadline)
        late = self._machine.resources[command.resource].outcome is not None
        self._machine.closed(command.resource, self._loop.time(), outcome, closed.undelivered, closed.detail)
        if outcome == "failed":
            self._reporting.errors.append(f"closing {command.resource}: {closed.detail}")
        if not late:
            self._tell_closed(command.resource)
        self._turn()

    def _tell_closed(self, name: str) -> None:
        r = self._machine.resources[name]
        began = r.began if r.began is not None else self._loop.time()
        seconds = (r.ended if r.ended is not None else self._loop.time()) - began
        self._telling.tell(ev.ResourceClosed(name, r.part, r.outcome or "", seconds, r.undelivered, r.detail))
