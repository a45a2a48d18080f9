"""From a definition to a process, or to a guest of somebody else's loop."""

import asyncio
import atexit
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from quiesce.errors import QuiesceError, StartError
from quiesce.lifecycle.report import ShutdownReport
from quiesce.supervisor.definition import ServiceDefinition
from quiesce.supervisor.hosted_life import HostedLife
from quiesce.supervisor.runner import Runner
from quiesce.supervisor.signals import SIGNALS, SignalLadder
from quiesce.supervisor.strays import end_strays

T = TypeVar("T")

log = logging.getLogger("quiesce.supervisor")

YOUNG = (10_000, 20, 20)
"""How many new objects are worth a look for garbage, and how many looks a longer one. A relay or a consumer makes
thousands of rows or records at a time, none of which is garbage yet when 700 are there."""

TEARDOWN = 0.2
"""Seconds for what is left on the loop after the report. What can hang has been named there, and the hard deadline
stands behind it."""


def run(definition: ServiceDefinition, ladder: SignalLadder | None = None) -> int:
    """Runs the service as this process and returns its exit code.

    Args:
        ladder: signals taken before the service's module was imported; by default they are taken here.
    """
    if ladder is None:
        ladder = SignalLadder()
        ladder.install()
    atexit.register(_turn_deaf)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    runners: list[Runner] = []
    report = _through(loop, _run(definition, ladder, runners), runners)
    _through(loop, _tear_down(loop), runners)
    # The executor is not waited for: a thread that hangs there would hold us, and the hard deadline, still
    # armed, bounds the interpreter's own wait for it.
    loop.close()
    if _is_terminal(sys.stderr):
        print(report.table(), file=sys.stderr)  # noqa: T201 - for the person in front of the terminal
    return report.exit_code


def _through(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], runners: Sequence[Runner]) -> T:
    """Runs it to its end. Where somebody's code asks for the end of the process from a task or a callback of the
    loop, the service stops as failed, in order, and the loop goes on with that."""
    task = loop.create_task(work)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done():
                raise
            log.error("a task or a callback wants to end the process", exc_info=error)
            for runner in runners:
                runner.failed("a task or a callback", error)


def _is_terminal(stream: Any) -> bool:
    """There may be none, it may be closed, and it may be somebody's own that knows no such question."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        return False


def _turn_deaf() -> None:
    """The interpreter gives signals back their default action while it ends: a late SIGTERM would turn a clean 0
    into 143. Called when all threads are joined, so there is nothing left that a further signal could hurry."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


async def _run(definition: ServiceDefinition, ladder: SignalLadder, runners: list[Runner]) -> ShutdownReport:
    runner = Runner(definition, hard_deadline=True)
    runners.append(runner)
    ladder.attach(asyncio.get_running_loop(), runner.signalled.step, runner.tell_where, runner.signalled.arm)
    runner.running.add_done_callback(_leave_the_start_alone)
    runner.begin()
    try:
        return await runner.stopped
    finally:
        ladder.detach()


def _leave_the_start_alone(running: asyncio.Future[None]) -> None:
    """The modules and whatever the start built stay to the end. Looking through them for garbage, again and again,
    stops the loop for 10 ms and more each time; so they are looked through once, and then taken out of it."""
    if not running.cancelled():
        gc.collect()
        gc.freeze()
        gc.set_threshold(*YOUNG)


async def _tear_down(loop: asyncio.AbstractEventLoop) -> None:
    """The last cancel for what did not end, or began behind the report."""
    await end_strays((), TEARDOWN)
    try:
        async with asyncio.timeout(TEARDOWN):
            await loop.shutdown_asyncgens()
    except TimeoutError:
        log.warning("an async generator did not close in time")


class Running:
    """A service that runs inside somebody else's loop."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def port(self) -> int | None:
        """The port of the HTTP server, if there is one."""
        return None if self._runner.start.http is None else self._runner.start.http.port

    @property
    def ready(self) -> bool:
        return self._runner.readiness.ready

    @property
    def phase(self) -> str:
        return self._runner.readiness.phase.value

    async def stop(self, reason: str = "stopped by the caller", within: float | None = None) -> ShutdownReport:
        """Requests a stop and waits for the report. `within`: seconds left, where the caller knows."""
        self._runner.stop(reason, within=within)
        return await asyncio.shield(self._runner.stopped)

    async def stopped(self) -> ShutdownReport:
        """Waits until the service has stopped, for whatever reason."""
        return await asyncio.shield(self._runner.stopped)


@contextlib.asynccontextmanager
async def running(definition: ServiceDefinition) -> AsyncIterator[Running]:
    """Runs the service as a guest: in a test, a notebook, another program. It takes no signals.

    Entering waits until the service runs; leaving stops it and waits for the end, however often it is cancelled
    meanwhile: the second cancel aborts. A loop that ends around it waits as well. What a guest cannot promise:
    the hard deadline, since the process is not ours to end, and the exit code.

    Raises:
        QuiesceError: the service could not start; the error of its start-up function is the cause.
    """
    runner = Runner(definition, hard_deadline=False)
    life = HostedLife(runner)
    cancels = 0
    try:
        outcomes: set[asyncio.Future[Any]] = {runner.running, runner.stopped}
        # Bounded by the start limit of each resource and, once a stop is requested, by the budget.
        await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        if runner.start_error is not None:
            if isinstance(runner.start_error, QuiesceError):
                raise runner.start_error
            raise StartError(f"{definition.name} could not start: {runner.start_error}") from runner.start_error
        yield Running(runner)
    except asyncio.CancelledError:
        cancels = 1
        raise
    finally:
        runner.stop("left by its host")
        await life.over(cancels)
