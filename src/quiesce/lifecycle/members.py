"""What the machine remembers of each worker and each resource."""

from dataclasses import dataclass

from quiesce.lifecycle.budget import WorkerBound
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part


@dataclass(slots=True)
class WorkerState:
    """`told_at`: when its token fired. `outcome` is None while it runs.

    It is `finished`, `failed`, `aborted` (torn), `handed back` (torn, and its work was put back), or
    `abandoned` (it still ran when the closing began).
    """

    ask: WorkerBound
    running: bool = False
    told_at: float | None = None
    deadline: Deadline | None = None
    aborted: bool = False
    abort_cause: str | None = None
    outcome: str | None = None
    error: str | None = None
    seconds: float | None = None

    @property
    def over(self) -> bool:
        return self.outcome is not None or not self.running

    def end(self, now: float, error: str | None, *, torn: bool, handed_back: bool) -> str:
        if self.aborted and torn:
            self.outcome = "handed back" if handed_back else "aborted"
        else:
            self.outcome = "finished" if error is None else "failed"
        self.error = error
        if self.told_at is not None:
            self.seconds = now - self.told_at
        return self.outcome


@dataclass(slots=True)
class ResourceState:
    """`opened` stays False for one whose opening failed: it is never closed."""

    name: str
    part: Part
    opened: bool = False
    began: float | None = None
    ended: float | None = None
    deadline: Deadline | None = None
    outcome: str | None = None
    undelivered: int = 0
    detail: str = ""


LATE = 0.1
"""Seconds by which a timer may wake late on a busy machine before a part counts as overrun."""


@dataclass(slots=True)
class PartState:
    """`until`: when it had to be over."""

    began: float
    until: Deadline
    ended: float | None = None

    def seconds(self, now: float) -> float:
        return (now if self.ended is None else self.ended) - self.began

    def overran(self, now: float) -> bool:
        return (now if self.ended is None else self.ended) > self.until.at + LATE
