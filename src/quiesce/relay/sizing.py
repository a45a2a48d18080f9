"""How much may be in flight, so that a stop can still finish all of it. Pure."""

from collections import deque
from dataclasses import dataclass

WINDOW = 10.0
"""Seconds that a measurement counts; the last one counts until there is another."""

LEAST = 10
"""Events that may always be in flight, and where it begins: a broker that cannot answer for so few in time answers
for nothing in time."""

SHARE = 0.6
"""Of the time that a stop leaves, the part that what is in flight may take: the rest is for giving up in order, for
the marks, and for a broker that has just become slower."""


@dataclass(frozen=True, slots=True)
class _Measured:
    at: float
    events: int
    seconds: float


class Sizing:
    """Sizes what is in flight from measured publish times. Instants and durations are seconds of one clock.

    So many events answered in so many seconds, in which there were any to answer, is the broker's pace: or less,
    where the time is mostly the way there and back. Less is the safe side, and it mends itself: more in flight is
    then answered in the same time.
    """

    def __init__(self, most: int, within: float) -> None:
        """`most` events, whatever is measured; `within` seconds a stop may take."""
        self.most = most
        self.target = SHARE * within
        self._least = self._unmeasured = min(LEAST, most)
        self._window: deque[_Measured] = deque()
        # Of what is in the window: asked for with every claim, and the window may hold thousands.
        self._events = 0
        self._seconds = 0.0

    def answered(self, now: float, events: int, seconds: float) -> None:
        """A claim is answered, `seconds` after it was handed over, or after the answer before."""
        measured = _Measured(now, events, max(seconds, 1e-6))
        self._window.append(measured)
        self._events += measured.events
        self._seconds += measured.seconds
        while len(self._window) > 1 and self._window[0].at < now - WINDOW:
            left = self._window.popleft()
            self._events -= left.events
            self._seconds -= left.seconds
        if len(self._window) == 1:
            # Nothing is left of what rounding has gathered.
            self._events, self._seconds = measured.events, measured.seconds

    def refused(self, events: int) -> None:
        """All of a claim was refused. That says nothing about the pace; but none of it is with the broker, and what
        comes next is likely to be of the same kind. So as long as no pace is known, the next claim may have twice as
        many: what stands behind events of a topic that is missing must not wait for them ten at a time."""
        self._unmeasured = min(self.most, max(self._unmeasured, 2 * events))

    def pace(self) -> float | None:
        """Events a second, at least, that the broker answers; None before anything is measured."""
        if not self._window:
            return None
        return self._events / max(self._seconds, 1e-6)

    def allowed(self, waiting: int = 0, waited: float = 0.0) -> int:
        """How many events may be in flight. For `waited` seconds, no claim has been answered though `waiting` events
        wait: a broker that has just become slower shows there first."""
        pace = self.pace()
        if pace is None:
            return self._unmeasured
        if waiting and waited > waiting / pace:
            pace = waiting / waited
        return max(self._least, min(self.most, int(pace * self.target)))
