"""The parts of a shutdown that have begun, and how long each takes."""

from dataclasses import dataclass

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import PartBegan, PartEnded
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.plan import Plan

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


class Parts:
    """Begins and ends them, and gives the events that say so. Each begins once."""

    def __init__(self) -> None:
        self.states: dict[Part, PartState] = {}

    def begin(self, part: Part, now: float, until: Deadline) -> PartBegan:
        self.states[part] = PartState(now, until)
        return PartBegan(part, now, until.remaining(now))

    def end(self, part: Part, now: float) -> PartEnded:
        state = self.states[part]
        state.ended = now
        return PartEnded(part, now, state.seconds(now), state.overran(now))

    def shorten(self, plan: Plan) -> None:
        """Less time is left than was planned."""
        for part, state in self.states.items():
            if state.ended is None:
                state.until = min(state.until, plan.part(part))

    def began(self, part: Part) -> bool:
        return part in self.states

    def under_way(self, part: Part) -> bool:
        return part in self.states and self.states[part].ended is None
