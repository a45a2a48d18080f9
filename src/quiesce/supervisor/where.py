"""Where a task or a thread stands now, in one line, as a person looks for it in the source."""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Iterator
from types import AsyncGeneratorType, FrameType
from typing import Any

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_OURS = os.path.dirname(__file__) + os.sep
_SECTIONS = _OURS + "sections.py"
_DEEP = 20
"""Tasks that wait for one another, at most: a circle of them must not hold the report."""

OUR_THREADS = "quiesce "
"""How the names of threads begin that belong to us and are never what hangs."""


def place_of(task: asyncio.Task[Any], thread: int | None = None) -> str:
    """The innermost await of a task, through the tasks that it waits for.

    Where that is in the standard library, the user's line that led there comes first. For a task that runs
    this very moment it is the top of its stack; `thread` is the thread of its loop.
    """
    frames: list[FrameType] = []
    for each in chain_of(task):
        coroutine = each.get_coro()
        if getattr(coroutine, "cr_running", False) and thread is not None:
            frames = list(_stack(thread))
            break
        frames += _awaits(coroutine)
    return _told(frames) if frames else f"task {task.get_name()}"


def chain_of(task: asyncio.Task[Any]) -> list[asyncio.Task[Any]]:
    """The task, the one that it waits for, the one that that one waits for, and so on."""
    chain: list[asyncio.Task[Any]] = []
    current: asyncio.Task[Any] | None = task
    while current is not None and current not in chain and len(chain) < _DEEP:
        chain.append(current)
        frames = list(_awaits(current.get_coro()))
        current = _waits_for(current, frames[-1] if frames else None)
    return chain


def top_of_thread(ident: int) -> str:
    """The top of a thread's stack."""
    return _told(list(_stack(ident))) or "unknown"


def thread_called(name: str) -> int | None:
    """The number of the living thread of that name."""
    return next((thread.ident for thread in threading.enumerate() if thread.name == name), None)


def busy_threads(*, daemons: bool = True) -> list[tuple[str, str]]:
    """Name and place of every thread that is neither ours, nor the main thread, nor idle in an executor.

    `daemons` False: only those that the interpreter's exit waits for.
    """
    main = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate() if daemons or not thread.daemon}
    busy = []
    for ident, top in sys._current_frames().items():
        name = names.get(ident)
        if name is None or ident == main or name.startswith(OUR_THREADS) or ident == threading.get_ident():
            continue
        idle = top.f_code.co_name == "_worker" and top.f_code.co_filename.endswith("thread.py")
        if not idle:
            busy.append((name, top_of_thread(ident)))
    return sorted(busy)


def _awaits(awaited: Any) -> Iterator[FrameType]:
    """Outermost first."""
    while awaited is not None:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                yield frame
                awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)
                break
        else:
            if not type(awaited).__name__.startswith("async_generator_"):
                return
            # What `anext` makes hides its generator, and every `@asynccontextmanager` is left through one.
            awaited = next((held for held in gc.get_referents(awaited) if isinstance(held, AsyncGeneratorType)), None)


def _waits_for(task: asyncio.Task[Any], innermost: FrameType | None) -> asyncio.Task[Any] | None:
    """The task that this one waits for, where one can know it."""
    waited = getattr(task, "_fut_waiter", None)
    candidates: list[Any] = [waited, *getattr(waited, "_children", ())]
    if innermost is not None:
        name, file = innermost.f_code.co_name, innermost.f_code.co_filename
        if name == "_wait" and file.endswith("tasks.py"):
            candidates += innermost.f_locals.get("fs", ())
        elif name == "run" and file == _SECTIONS:
            candidates.append(innermost.f_locals.get("task"))
        elif name == "__aexit__" and file.endswith("taskgroups.py"):
            candidates += getattr(innermost.f_locals.get("self"), "_tasks", ())
    return next((c for c in candidates if isinstance(c, asyncio.Task) and not c.done()), None)


def _stack(ident: int) -> Iterator[FrameType]:
    frames: list[FrameType] = []
    frame = sys._current_frames().get(ident)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    yield from reversed(frames)


def _told(frames: list[FrameType]) -> str:
    if not frames:
        return ""
    own = next((frame for frame in reversed(frames) if not _foreign(frame)), frames[-1])
    line = _line(own)
    return line if own is frames[-1] else f"{line} > {_line(frames[-1])}"


def _foreign(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith(("<frozen", _OURS)):
        return True
    return file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file


def _line(frame: FrameType) -> str:
    code = frame.f_code
    file = "/".join(code.co_filename.split(os.sep)[-2:])
    return f"{file}:{frame.f_lineno} in {code.co_name}"
