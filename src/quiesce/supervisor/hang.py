"""The hang report: who still runs, for how long, where, in which critical section, holding what.

It reads tasks and stacks and changes nothing. It may be made on any thread: past the hard deadline the loop
may be blocked.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from quiesce.lifecycle.events import StillRunning
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.ports import NamesHolders
from quiesce.lifecycle.watches import What
from quiesce.supervisor.members import RunningWorker, never_torn
from quiesce.supervisor.sections import Section, Sections
from quiesce.supervisor.where import busy_threads, chain_of, place_of, thread_called, top_of_thread

Task = asyncio.Task[Any]


class Request(Protocol):
    """A request in flight, as far as it matters here."""

    @property
    def name(self) -> str: ...

    @property
    def began(self) -> float: ...


class HangReport:
    """Looks at what one service runs.

    Args:
        closers: the task of each closing, by the name of its resource.
        start: the tasks of the start-up function and of openings in hand, by kind and name.
        requests: the requests in flight and their tasks.
        now: seconds of the machine's clock.
    """

    def __init__(
        self,
        machine: Machine,
        workers: Mapping[str, RunningWorker],
        sections: Sections,
        resources: Mapping[str, object],
        closers: Mapping[str, Task],
        start: Callable[[], Mapping[tuple[str, str], Task]],
        requests: Callable[[], Mapping[Task, Request]],
        now: Callable[[], float],
    ) -> None:
        self._machine = machine
        self._workers = workers
        self._sections = sections
        self._resources = resources
        self._closers = closers
        self._start = start
        self._requests = requests
        self._now = now
        self._thread = threading.get_ident()

    def look(self, what: What, name: str, share: float | None) -> list[StillRunning]:
        """What still runs of one kind; `name` where the kind has names."""
        match what:
            case What.START:
                return list(self._look_at_start(share))
            case What.HTTP:
                return list(self._look_at_requests(share))
            case What.WORKER:
                return list(self._look_at_worker(name, share))
            case What.SECTIONS:
                return [self._told_of(section, share) for section in self._sections.open()]
            case What.CLOSER:
                return list(self._look_at_closer(name, share))

    def stray(self, task: Task) -> StillRunning:
        """A task of the user's that did not end when it was cancelled."""
        return self._told("task", task.get_name(), None, task, 1.0)

    def everything(self) -> list[StillRunning]:
        """All that runs now, threads included."""
        found = self.look(What.START, "", None) + self.look(What.HTTP, "", None)
        for name in self._workers:
            found += self.look(What.WORKER, name, None)
        found += self.look(What.SECTIONS, "", None)
        for name in list(self._closers):
            found += self.look(What.CLOSER, name, None)
        return found + [StillRunning("thread", name, None, where, "", "", None) for name, where in busy_threads()]

    def at_the_end(self) -> list[StillRunning]:
        """What still runs although closing is over, and the threads that the interpreter's exit waits for."""
        kinds = ("start", "opening", "request", "worker", "section", "closer")
        found = [hang for hang in self.everything() if hang.what in kinds]
        found += [StillRunning("thread", name, None, at, "", "", None) for name, at in busy_threads(daemons=False)]
        return [replace(hang, share=1.0) for hang in found]

    def _look_at_start(self, share: float | None) -> Iterator[StillRunning]:
        for (what, name), task in self._start().items():
            if not task.done():
                thread = thread_called(f"quiesce resource {name}")
                if thread is None:
                    yield self._told(what, name, None, task, share)
                else:
                    yield StillRunning(what, name, None, top_of_thread(thread), "", "", share)

    def _look_at_requests(self, share: float | None) -> Iterator[StillRunning]:
        for task, request in list(self._requests().items()):
            yield self._told("request", request.name, self._now() - request.began, task, share)

    def _look_at_worker(self, name: str, share: float | None) -> Iterator[StillRunning]:
        worker = self._workers[name]
        if worker.task is None or worker.task.done():
            return
        state = self._machine.workers[name]
        # A worker may have no iterations that we know of; then its age counts from being told to stop.
        told = [] if state.told_at is None else [self._now() - state.told_at]
        ages = [age for _, age in worker.token.in_hand()] or told
        age = max(ages, default=None)
        thread = thread_called(f"worker {name}") if never_torn(worker.worker) else None
        if thread is None:
            yield self._told("worker", name, age, worker.task, share)
        else:
            inside = [section.name for section in self._sections.open() if section.thread == thread]
            yield StillRunning("worker", name, age, top_of_thread(thread), ", ".join(inside), "", share)

    def _look_at_closer(self, name: str, share: float | None) -> Iterator[StillRunning]:
        task, state = self._closers.get(name), self._machine.resources[name]
        if task is not None and not task.done() and state.began is not None:
            age = self._now() - state.began
            # A closer that blocks has a thread of its own, called after it.
            thread = thread_called(f"quiesce closing {name}") or thread_called(f"quiesce resource {name}")
            if thread is None:
                yield self._told("closer", name, age, task, share)
            else:
                yield StillRunning("closer", name, age, top_of_thread(thread), "", "", share)

    def _told(self, what: str, name: str, age: float | None, task: Task, share: float | None) -> StillRunning:
        chain = chain_of(task)
        inside = [section.name for section in self._sections.open() if section.task in chain]
        holds = [text for resource in self._resources.values() for text in _held_by(chain, resource)]
        where = place_of(task, self._thread)
        if where.endswith("in to_thread"):
            # Which of the executor's threads it waits for is not known.
            where += "".join(f"; {name} at {at}" for name, at in busy_threads() if name.startswith("asyncio_"))
        return StillRunning(what, name, age, where, ", ".join(inside), ", ".join(holds), share)

    def _told_of(self, section: Section, share: float | None) -> StillRunning:
        age = self._now() - section.began
        if section.task is None:
            return StillRunning("section", section.name, age, top_of_thread(section.thread), section.name, "", share)
        return self._told("section", section.name, age, section.task, share)


def _held_by(chain: Sequence[Task], resource: object) -> Iterator[str]:
    if isinstance(resource, NamesHolders):
        names = {task.get_name() for task in chain}
        resource_name = getattr(resource, "name", type(resource).__name__)
        yield from (f"{resource_name}: {told}" for task, told in resource.holders() if task in names)
