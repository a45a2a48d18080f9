"""Who holds what was taken from a pool: told when closing the pool takes too long."""

import asyncio
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType

# Frames that are beneath every task and thread, and no part of it.
_BENEATH = ("asyncio.events", "asyncio.base_events", "asyncio.runners", "threading")


@dataclass(frozen=True, slots=True)
class Holder:
    """Where, by whom and when (monotonic seconds) one connection was taken."""

    place: str
    task: str | None
    thread: str
    at: float
    process: int | None
    """The server's process for it, if the driver knows."""

    def told(self, now: float) -> str:
        server = "" if self.process is None else f", server process {self.process}"
        who = f"thread {self.thread}" if self.task is None else f"task {self.task}"
        return f"{self.place}, {who}, for {now - self.at:.1f} s{server}"


class Holders:
    """Remembers who took each connection and has not given it back. Any thread may call.

    `passed_through`: modules that every taking passes through; whoever called them is the one to name.
    """

    def __init__(self, *passed_through: str) -> None:
        self._passed_through = ("contextlib", "asyncio", *passed_through)
        self._held: dict[int, Holder] = {}

    def took(self, key: int, process: int | None, outer: Iterable[FrameType] = ()) -> None:
        """`outer`: where to look on when the stack of the caller names nobody."""
        place = _caller([sys._getframe(1), *outer], self._passed_through)
        self._held[key] = Holder(place, _task(), threading.current_thread().name, time.monotonic(), process)

    def gave_back(self, key: int) -> None:
        self._held.pop(key, None)

    def now(self) -> list[Holder]:
        return list(self._held.values())

    def tasks(self) -> list[tuple[str, str]]:
        """For each connection that a task holds: the name of the task, and what to tell of it."""
        now = time.monotonic()
        return [(holder.task, f"a connection since {holder.told(now)}") for holder in self.now() if holder.task]


def detail(held: Iterable[Holder]) -> str:
    """One line that names them all, for a report."""
    now = time.monotonic()
    told = [holder.told(now) for holder in held]
    return f"{len(told)} connection(s) not given back: " + "; ".join(told)


def _task() -> str | None:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return None if task is None else task.get_name()


def _caller(stacks: Iterable[FrameType], passed_through: tuple[str, ...]) -> str:
    for innermost in stacks:
        frame: FrameType | None = innermost
        while frame is not None:
            module = str(frame.f_globals.get("__name__", ""))
            if module in _BENEATH:
                break
            if not module.startswith(passed_through):
                return f"{module}:{frame.f_lineno} in {frame.f_code.co_name}"
            frame = frame.f_back
    return "unknown place"
