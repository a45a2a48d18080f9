"""Flushes telemetry inside the part `report`: at the interpreter's exit it would be too late."""

import asyncio
import logging
import threading
from collections.abc import Iterable

from quiesce.lifecycle.ports import FlushesTelemetry, Observer

log = logging.getLogger("quiesce.supervisor")


async def flush(observers: Iterable[Observer], seconds: float) -> None:
    """Calls `flush` of each observer that has one, side by side, each in a thread of its own. Never longer
    than `seconds`: what hangs is left to its daemon thread and named in the log."""
    loop = asyncio.get_running_loop()
    waiting = {
        _in_thread(loop, observer, seconds): observer
        for observer in observers
        if isinstance(observer, FlushesTelemetry)
    }
    if not waiting:
        return
    done, late = await asyncio.wait(waiting, timeout=seconds)
    for future in late:
        log.warning("telemetry of %s was not flushed within %.3g s", _name(waiting[future]), seconds)
    for future in done:
        error = future.exception()
        if error is not None:
            log.warning("telemetry of %s was not flushed: %s", _name(waiting[future]), error)
        elif not future.result():
            log.warning("telemetry of %s was not flushed completely", _name(waiting[future]))


def _in_thread(loop: asyncio.AbstractEventLoop, observer: FlushesTelemetry, seconds: float) -> asyncio.Future[bool]:
    """A daemon thread and no executor: the interpreter waits for an executor's threads at its exit."""
    flushed: asyncio.Future[bool] = loop.create_future()

    def settle(complete: bool, error: BaseException | None) -> None:
        if flushed.done():
            return
        if error is None:
            flushed.set_result(complete)
        else:
            flushed.set_exception(error)

    def run() -> None:
        complete = False
        error: BaseException | None = None
        try:
            complete = observer.flush(seconds)
        except BaseException as raised:  # noqa: BLE001 - told by whoever waits
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, complete, error)

    threading.Thread(target=run, name=f"quiesce flush {_name(observer)}", daemon=True).start()
    return flushed


def _name(observer: object) -> str:
    return type(observer).__name__
