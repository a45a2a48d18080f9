"""Who used the machine's cores meanwhile: what is measured, its servers, this process, and others. Linux only."""

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Any

LOADED = 0.25
"""Cores taken by others, or withheld by the host, from which on a figure is told to be one of a loaded machine."""

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Shares:
    """Cores in use on average: 1.0 is one core all the time.

    Args:
        seconds: how long was looked.
        parts: by the name it was given.
        ours: this process with all that it started, the parts among them.
        others: processes that are none of ours. None where the system does not tell.
        stolen: withheld by the host of a virtual machine. None as above.
    """

    seconds: float
    parts: dict[str, float]
    ours: float
    others: float | None
    stolen: float | None

    @property
    def loaded(self) -> bool:
        """Whether others took so much that the figures are worse than the machine's."""
        return (self.others or 0.0) + (self.stolen or 0.0) > LOADED

    def line(self) -> str:
        """One line for people."""
        parts = ", ".join(f"{name} {share:.2f}" for name, share in self.parts.items())
        if self.others is None:
            return f"cores in use: {parts}" if parts else ""
        told = f"cores in use: {parts + ', ' if parts else ''}all of ours {self.ours:.2f}, others {self.others:.2f}"
        if self.stolen:
            told += f", withheld by the host {self.stolen:.2f}"
        return told + (": LOADED BY OTHERS, so the figures are worse than this machine's" if self.loaded else "")

    def as_json(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 1),
            "cores": {name: round(share, 3) for name, share in self.parts.items()},
            "ours": round(self.ours, 3),
            "others": None if self.others is None else round(self.others, 3),
            "stolen": None if self.stolen is None else round(self.stolen, 3),
            "loaded_by_others": self.loaded,
        }


class Cores:
    """Counts from its creation on, this process's tree and those of the named process ids.

    A part that has ended is counted as what its parent was told of it, so read it while it lives.
    """

    def __init__(self, **parts: int) -> None:
        self._parts = parts
        self._began = time.monotonic()
        self._machine = _machine()
        self._trees = _trees(os.getpid(), *parts.values())

    def used(self) -> Shares:
        """Until now."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        machine = _machine()
        now = _trees(os.getpid(), *self._parts.values())

        def of(pid: int) -> float:
            return max(0.0, now.get(pid, 0.0) - self._trees.get(pid, 0.0)) / seconds

        ours = of(os.getpid())
        others = stolen = None
        if machine is not None and self._machine is not None:
            others = max(0.0, (machine[0] - self._machine[0]) / seconds - ours)
            stolen = max(0.0, (machine[1] - self._machine[1]) / seconds)
        return Shares(seconds, {name: of(pid) for name, pid in self._parts.items()}, ours, others, stolen)


def memory(pid: int) -> float:
    """Megabytes (of 1,000,000 bytes) that the process has in memory. 0 when it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return 0.0


def _machine() -> tuple[float, float] | None:
    """CPU seconds in use and stolen since the system is up."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, stolen = (int(field) for field in file.readline().split()[1:9])
        return (user + nice + system + irq + softirq) / _TICKS, stolen / _TICKS
    return None


def _trees(*roots: int) -> dict[int, float]:
    """CPU seconds of each root with all below it, and of those that have ended there."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat") as file:
                    # Behind the name, which may have blanks and brackets in it.
                    fields = file.read().rpartition(")")[2].split()
                    parents[int(name)] = int(fields[1])
                    used[int(name)] = sum(int(field) for field in fields[11:15]) / _TICKS
    below: dict[int, list[int]] = {}
    for child, parent in parents.items():
        below.setdefault(parent, []).append(child)
    totals = {}
    for root in roots:
        found = [root]
        for one in found:
            found += below.get(one, ())
        totals[root] = sum(used.get(one, 0.0) for one in found)
    return totals
