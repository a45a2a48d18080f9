"""One life of a service inside somebody else's ASGI server."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from quiesce.asgi.heard_signals import HeardSignals
from quiesce.asgi.hosted_http import HostedHttp
from quiesce.errors import QuiesceError, StartError
from quiesce.lifecycle.events import Event, StopRequested
from quiesce.supervisor.definition import ServiceDefinition
from quiesce.supervisor.health import Gate
from quiesce.supervisor.hosted_life import HostedLife
from quiesce.supervisor.runner import Runner

log = logging.getLogger("quiesce.asgi")

Mount = Callable[[Gate, Any], HostedHttp]


class HostEnder:
    """Asks the host to end when the service stops by itself: it would go on serving with closed resources.

    An observer. It sends SIGTERM to its own process, the one request to stop that every server understands.
    """

    def __init__(self) -> None:
        self.armed = False

    def observe(self, event: Event) -> None:
        if self.armed and isinstance(event, StopRequested):
            self.armed = False
            handler = signal.getsignal(signal.SIGTERM)
            if handler in (signal.SIG_DFL, signal.SIG_IGN, None):
                log.error(
                    "the service stops (%s) and its server cannot be told: it has no SIGTERM handler", event.reason
                )
                return
            log.warning("the service stops (%s): SIGTERM to its own process, so that the server ends", event.reason)
            os.kill(os.getpid(), signal.SIGTERM)


@contextlib.asynccontextmanager
async def guest(definition: ServiceDefinition, mount: Mount, *, hear_signals: bool) -> AsyncIterator[None]:
    """Runs the service from the start of the server's lifespan to its end.

    Raises:
        QuiesceError: the service could not start; the server must not serve.
    """
    ender = HostEnder()
    definition = replace(definition, observers=(*definition.observers, ender))
    mounted: list[HostedHttp] = []

    def mount_once(gate: Gate, app: Any) -> HostedHttp:
        mounted.append(mount(gate, app))
        return mounted[0]

    runner = Runner(definition, hard_deadline=False, mount=mount_once)
    signals = HeardSignals(asyncio.get_running_loop(), lambda step, number: _heard(runner, ender, step, number))
    if hear_signals:
        signals.install()
    life = HostedLife(runner)
    twice = False
    try:
        outcomes: set[asyncio.Future[Any]] = {runner.running, runner.stopped}
        await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        error = runner.start_error
        if error is not None:
            raise (
                error if isinstance(error, QuiesceError) else StartError(f"{definition.name} could not start: {error}")
            )
        # Where a signal stopped the start, the server has had it, too, and leaves as soon as we let it.
        ender.armed = not runner.stopped.done()
        yield
    except asyncio.CancelledError:
        # The server did not end the lifespan: somebody has asked twice.
        twice = True
        raise
    finally:
        ender.armed = False
        for http in mounted:
            http.server_left(_torn_with_us(life) if twice else ())
        if twice:
            runner.abort("cancelled by its server")
        else:
            runner.stop("its server stops")
        try:
            await life.over(cancels=2 if twice else 0)
        finally:
            signals.restore()


def _torn_with_us(life: HostedLife) -> list[asyncio.Task[Any]]:
    """The server's tasks that were cancelled, requests among them: what they unwind with is closed after them."""
    ours = (life.stand_in, asyncio.current_task())
    return [task for task in asyncio.all_tasks() if task not in ours and task.cancelling()]


def _heard(runner: Runner, ender: HostEnder, step: int, number: int) -> None:
    ender.armed = False
    runner.signalled.step(step, number)
