"""Runs one worker from its beginning to its end: restarts, aborts, and what was in hand."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from quiesce.errors import QuiesceError
from quiesce.lifecycle import events as ev
from quiesce.lifecycle.budget import HAND_BACK_BOUND
from quiesce.lifecycle.machine import Machine
from quiesce.lifecycle.restart import Failures
from quiesce.supervisor.members import RunningWorker, never_torn
from quiesce.supervisor.readiness import Readiness
from quiesce.supervisor.reporting import Reporting, line_of
from quiesce.supervisor.sections import Sections
from quiesce.supervisor.telling import Telling

log = logging.getLogger("quiesce.supervisor")


class Spawn(Protocol):
    """Makes a task of the service's own."""

    def __call__(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]: ...


class Working:
    """What all workers of one service share while they run.

    Args:
        turn: is called when a worker has ended; True if it failed.
    """

    def __init__(
        self,
        machine: Machine,
        telling: Telling,
        reporting: Reporting,
        readiness: Readiness,
        sections: Sections,
        spawn: Spawn,
        turn: Callable[[bool], None],
    ) -> None:
        self._machine = machine
        self._telling = telling
        self._reporting = reporting
        self._readiness = readiness
        self._sections = sections
        self._spawn = spawn
        self._turn = turn
        self._now = asyncio.get_running_loop().time

    async def run(self, name: str, worker: RunningWorker) -> None:
        """The whole life of a worker, in a task that no abort reaches: only `worker.task` is cancelled."""
        self._telling.tell(ev.WorkerBegan(name))
        error = await self._until_it_is_over(name, worker)
        task = worker.task
        # One that came back by itself after its cancel has put down what it had.
        torn = task is not None and (task.cancelled() or task.result() is not None)
        handed_back = False
        if worker.cancelled and torn and worker.torn_in_hand and worker.hand_back is not None:
            handed_back = await self._hand_back(name, worker.hand_back)
        if error is not None:
            self._reporting.errors.append(f"worker {name}: {error}")
        self._machine.worker_ended(
            name, self._now(), error, torn=not never_torn(worker.worker), handed_back=handed_back
        )
        state = self._machine.workers[name]
        self._telling.tell(ev.WorkerEnded(name, state.outcome or "finished", state.seconds))
        if state.outcome == "finished" and not worker.token.requested:
            # Nothing fails, and nothing is done any more: what a probe that asks for the process only never sees.
            log.warning("worker %s returned without being told to stop; nobody begins it again", name)
            self._readiness.worker_returned(name)
        self._turn(state.outcome == "failed")

    async def _until_it_is_over(self, name: str, worker: RunningWorker) -> str | None:
        """Runs it, and again as its restart policy says. The last error, in a line."""
        failures = None if worker.restart is None else Failures(worker.restart)
        while not worker.token.requested:
            error = await self._once(name, worker)
            if error is None or failures is None or worker.token.requested:
                return error
            wait = failures.add(self._now())
            if wait is None:
                return f"{error}; given up after {failures.count} failures within {failures.policy.within:g} s"
            self._telling.tell(ev.WorkerRestarted(name, error, failures.count, wait))
            self._readiness.worker_down(name, f"failed, begins again in {wait:.1f} s: {error}")
            await worker.token.sleep(wait)
            self._readiness.worker_up(name)
        return None

    async def _once(self, name: str, worker: RunningWorker) -> str | None:
        worker.task = task = self._spawn(_outcome(worker), f"worker {name}")
        # Bounded by the machine: past its deadline the task is cancelled, and at the end of the drain left.
        await asyncio.wait((task,))
        if task.cancelled():
            worker.token.put_down(failed=False)
            return None if worker.cancelled else "cancelled by somebody else"
        raised = task.result()
        worker.token.put_down(failed=raised is not None)
        if raised is None:
            return None
        # An error of ours says what to do, and a traceback would bury it.
        log.error("worker %s failed: %s", name, raised, exc_info=None if isinstance(raised, QuiesceError) else raised)
        return line_of(raised)

    async def _hand_back(self, name: str, hand_back: Callable[[], object]) -> bool:
        async def bounded() -> None:
            async with asyncio.timeout(min(HAND_BACK_BOUND, self._sections.remaining())):
                result = hand_back()
                if inspect.isawaitable(result):
                    await result

        try:
            await self._sections.run(f"hand back of {name}", bounded)
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            log.error("worker %s: handing back what it had in hand failed", name, exc_info=error)
            self._reporting.errors.append(f"worker {name}: hand_back: {line_of(error)}")
            return False
        return True


async def _outcome(worker: RunningWorker) -> BaseException | None:
    """What `run` raised. Never by raising it: SystemExit in a task would tear the loop down."""
    try:
        await worker.worker.run(worker.token)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - handed to the supervising task, which logs it
        return error
    return None
