"""`critical`, `critical_in_thread` and `remaining`: which service a stretch of code belongs to."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from quiesce.supervisor.sections import Sections

P = ParamSpec("P")
T = TypeVar("T")

_NOBODYS = Sections()
"""Those outside a service: nothing waits for them, so one serves all."""

_UNKNOWN = Sections()
"""In a context that no service has made: that of a host, or of a thread that was given none."""

_current: ContextVar[Sections] = ContextVar("quiesce_sections", default=_UNKNOWN)

_living: list[Sections] = []
"""Those of the services that run in this process now."""


def enter(sections: Sections | None) -> None:
    """Makes `critical` use these sections in this context and in all tasks made from it."""
    _current.set(_NOBODYS if sections is None else sections)


def begin_life(sections: Sections) -> None:
    """A service runs now: threads whose context says nothing belong to it, while it is the only one."""
    _living.append(sections)


def end_life(sections: Sections) -> None:
    if sections in _living:
        _living.remove(sections)


def _of_thread(name: str) -> Sections:
    """Those of the calling thread. Executors and plain threads do not hand the context on."""
    sections = _current.get()
    if sections is not _UNKNOWN:
        return sections
    if len(_living) > 1:
        raise RuntimeError(
            f"critical_in_thread({name!r}): {len(_living)} services run in this process, and the context of this "
            "thread does not say which one it works for; start it by asyncio.to_thread or s.thread"
        )
    return _living[0] if _living else _NOBODYS


@contextmanager
def outside() -> Iterator[None]:
    """For opening a resource: what it does while it closes must not wait for the sections of its service."""
    token = _current.set(_NOBODYS)
    try:
        yield
    finally:
        _current.reset(token)


async def critical(name: str, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `fn(*args)` to its end in a task that the service owns.

    Neither `Task.cancel()`, nor `asyncio.timeout`, nor a cancelled parent, nor the end of `asyncio.run` reaches
    it. A caller that is cancelled meanwhile gets its `CancelledError` after the section is over. The service
    keeps its resources open until then; only past the deadline of the drain is the section aborted, by name.
    Tasks that are made inside, such as those of a `TaskGroup`, are as safe as itself. Sections nest.

    Outside a service it protects in the same way, and nothing waits for it.

    Raises:
        IntakeClosed: the service has begun to close its resources.
        Exception: whatever `fn` raises.
    """
    return await _current.get().run(name, fn, *args, **kwargs)


@contextmanager
def critical_in_thread(name: str) -> Iterator[None]:
    """The twin of `critical` for code that runs in a thread: `with critical_in_thread("charge payment"):`.

    Nothing tears a thread, so there is only this to do: the service keeps its resources open until the block
    is left, and names it if it overruns. Works in threads of `s.thread` and of `asyncio.to_thread`, and in any
    other thread, such as one of `run_in_executor`, where the process runs one service.

    Raises:
        IntakeClosed: the service has begun to close its resources.
        RuntimeError: it was used in a coroutine, where it could not protect anything; or several services run,
            and the thread was started without a context that says which one it works for.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError(f"critical_in_thread({name!r}) protects nothing in a coroutine; use: await critical(...)")
    with _of_thread(name).hold(name):
        yield


def remaining() -> float:
    """Seconds until a critical section that is open here would be aborted; infinite until a stop is requested.

    Never below zero. Works in coroutines and in threads of the service; outside a service it is infinite.
    """
    sections = _current.get()
    if sections is _UNKNOWN and len(_living) == 1 and asyncio._get_running_loop() is None:
        return _living[0].remaining()
    return sections.remaining()
