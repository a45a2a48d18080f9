"""One call of a handler, while it runs."""

import asyncio
from contextlib import AbstractContextManager
from dataclasses import dataclass

from quiesce.inbox.piece import Outcome, Piece


@dataclass(slots=True, eq=False)
class Call:
    """A piece in hand, the task that carries it, and why it was torn, if it was."""

    piece: Piece
    iteration: AbstractContextManager[None]
    began: float
    task: "asyncio.Task[Outcome] | None" = None
    handler_began: float | None = None
    """When the handler itself began; None before and after it runs."""
    fenced: str | None = None
    """Why it was torn though it did nothing wrong: what it does is no outcome."""
    overdue: bool = False
    """The handler took longer than its bound: a failed attempt."""
    outcome: Outcome | None = None
    """What came of it, once that is known: a tear that comes after it changes nothing."""
    noted: bool = True
    """Whether its start was noted, where starts are counted, and its end is to be noted too."""

    def fence(self, why: str) -> None:
        if self.fenced is None:
            self.fenced = why
            self.tear(why)

    def tear(self, why: str) -> None:
        if self.task is not None:
            self.task.cancel(why)
