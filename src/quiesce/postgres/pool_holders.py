"""Who holds a connection of a pool: told when closing it takes too long."""

import asyncio
import sys
import time
from dataclasses import dataclass
from types import FrameType

import asyncpg

from quiesce.postgres.driver import Proxy

# Frames that every acquire passes through; whoever called them is the one to name.
_PASSED_THROUGH = ("asyncpg", "contextlib", "asyncio", "quiesce.postgres")
# Frames that are beneath every task, and no part of it.
_BENEATH_TASKS = ("asyncio.events", "asyncio.base_events", "asyncio.runners")


@dataclass(frozen=True, slots=True)
class Holder:
    """Where and when a connection was acquired. `at` is monotonic seconds."""

    task: str
    place: str
    at: float
    proxy: Proxy

    def holds(self) -> bool:
        try:
            # A proxy that was released refuses every call; there is no kinder way to ask it.
            return not self.proxy.is_closed()
        except asyncpg.InterfaceError:
            return False

    def told(self, now: float) -> str:
        pid = self.proxy.get_server_pid()
        busy = "in a transaction" if self.proxy.is_in_transaction() else "not in a transaction"
        return f"{self.place}, task {self.task}, for {now - self.at:.1f} s, server process {pid}, {busy}"


class Holders:
    """Remembers the last acquirer of each connection. `note` is asyncpg's `setup` hook: called at every acquire."""

    def __init__(self) -> None:
        self._last: dict[int, Holder] = {}

    def note(self, proxy: Proxy) -> None:
        task = asyncio.current_task()
        name = task.get_name() if task else "none"
        holder = Holder(name, _caller(sys._getframe(1)), time.monotonic(), proxy)
        self._last[proxy.get_server_pid()] = holder
        if len(self._last) > 1000:
            # Server processes that are gone. A pool has tens of connections, so this is rare.
            self._last = {pid: last for pid, last in self._last.items() if last.holds()}

    def tasks(self) -> list[tuple[str, str]]:
        """The task of each connection that is held at this moment, and the same line."""
        now = time.monotonic()
        return [
            (holder.task, f"a connection since {holder.told(now)}") for holder in self._last.values() if holder.holds()
        ]

    def now(self) -> list[str]:
        """One line a connection that is held at this moment."""
        now = time.monotonic()
        return [holder.told(now) for holder in self._last.values() if holder.holds()]


def _caller(frame: FrameType | None) -> str:
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module in _BENEATH_TASKS:
            break
        if not module.startswith(_PASSED_THROUGH):
            return f"{module}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "unknown place"
