"""The launch of a replica: its process on a port that it is given, and the wait until the balancer finds it ready."""

import asyncio
import time

from quiesce.drill.balancer import Balancer
from quiesce.drill.replica import Recipe, Replica
from quiesce.errors import StartError
from quiesce.testing.process import log_tail
from quiesce.testing.service_process import ServiceProcess

HOST = "127.0.0.1"
_LOOK_EVERY = 0.1


async def launch(recipe: Recipe, name: str, number: int, port: int) -> Replica:
    """Starts the process and returns at once.

    Raises:
        StartError: there is no place for its log, or the program cannot be started.
    """
    environment = {**recipe.environment, "HOST": HOST, "PORT": str(port)}
    try:
        process = ServiceProcess(recipe.target, environment=environment, name=name)
    except OSError as error:
        raise StartError(
            f"cannot make a directory for {name}: {error.strerror}. Set TMPDIR to a directory that can be written"
        ) from error
    try:
        await asyncio.to_thread(process.start)
    except BaseException:
        process.discard()
        raise
    return Replica(name, number, port, process)


async def until_ready(replica: Replica, balancer: Balancer, within: float) -> None:
    """Waits until the balancer, which knows the replica, finds it ready.

    Raises:
        StartError: it ended before that, or `within` seconds passed; with what it or the balancer says of it.
    """
    ready = asyncio.create_task(balancer.until_ready(replica.name))
    deadline = time.monotonic() + within
    try:
        while not ready.done():
            await asyncio.wait({ready}, timeout=_LOOK_EVERY)
            if ready.done():
                return
            if not replica.process.alive:
                report = await asyncio.to_thread(replica.process.report)
                why = report["reason"] if report is not None else log_tail(replica.process.log)
                raise StartError(f"{replica.name} ended before it was ready: {why}")
            if time.monotonic() > deadline:
                backend = balancer.backend(replica.name)
                why = backend.health.reason if backend is not None else ""
                raise StartError(
                    f"{replica.name} was not ready after {within:g} s"
                    f"{f' ({why})' if why else ''}: {log_tail(replica.process.log)}"
                )
    finally:
        ready.cancel()
