"""Waiting for something that another process brings about, within a bound."""

import contextlib
import os
import selectors
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from quiesce.testing.process_guard import children_of


def until(condition: Callable[[], bool], within: float = 10.0) -> None:
    """Poll a condition; fail the test when it does not come true within the seconds."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"not within {within:g} s"
        time.sleep(0.01)


def first_line(pipe: IO[str], within: float = 30.0) -> str:
    """What a process says first, as soon as it says it."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        assert selector.select(within), f"it said nothing within {within:g} s"
    return pipe.readline()


def all_gone(pids: Iterable[int]) -> bool:
    """Whether none of the processes runs (a dead one that nobody has waited for counts as gone)."""
    return not any(_runs(pid) for pid in pids)


def guards() -> list[int]:
    """The guards of servers that run below this process: one for each that was started and not ended."""
    found = []
    for pid in children_of(os.getpid()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if "process_guard.py" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return sorted(found)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
