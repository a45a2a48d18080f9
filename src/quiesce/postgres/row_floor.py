"""Where a claim begins to look. Pure.

A row that was marked leaves a dead entry in the index that claims walk. PostgreSQL clears those away, but not while
some old transaction could still look at them: a forgotten session, a dump, a stale replication slot. Then a claim
would walk over everything that was dispatched since, and grow slower by the minute.

The floor is a position below which nothing waits. It must not hide an event that commits late, so it follows from what
the transactions say and from no clock:

- A store has seen position `top`. Positions are given out in rising order (the identity has CACHE 1), so every
  position up to `top` has been taken by some transaction, which had its number before it took the position (`xid`
  stands before `position` in the table). The claim's own transaction got its number `bound` when it locked the first
  row, which is later still, so all of theirs are smaller. (The xmax of a snapshot would not do: it is the last number
  that has ended plus one, and there may be running ones above it.)
- A later snapshot says `xmin`: all smaller numbers have ended. Once `xmin >= bound`, that snapshot shows whatever those
  transactions left. So what waits is at or above the first waiting event that it shows, or above `top`.

A transaction that only reads has no number, so the forgotten session does not keep the floor down.

Only somebody who goes round all this puts an event below it: redriving a dead letter, taking back a mark by hand,
restoring rows with positions of their own. For them one claim in a while begins at the bottom.
"""

from dataclasses import dataclass

SURVEY_EVERY = 0.5
"""Seconds between two looks at what transactions say: each costs an exchange with the server."""

FROM_BOTTOM_EVERY = 10.0
"""Seconds between two claims that begin at the bottom."""


@dataclass(frozen=True, slots=True)
class _Issued:
    top: int
    bound: int


class Floor:
    """Times are monotonic seconds. A new connection may lead to another server, and so begins with a new floor."""

    def __init__(self) -> None:
        self.position = 0
        self._top = 0
        self._issued: _Issued | None = None
        self._survey_at = 0.0
        self._bottom_at = 0.0

    def begin(self, now: float) -> int:
        """The position at which a claim begins to look."""
        if now >= self._bottom_at:
            self._bottom_at = now + FROM_BOTTOM_EVERY
            return 0
        return self.position

    def seen(self, lowest: int, highest: int) -> None:
        """A claim came back with events at these positions."""
        self._top = max(self._top, highest)
        if lowest < self.position:
            # There may be more of them than a page.
            self._bottom_at = 0.0

    def wants_survey(self, now: float) -> bool:
        """Whether it is time for `surveyed`. Asking is taken for doing."""
        if now < self._survey_at:
            return False
        self._survey_at = now + SURVEY_EVERY
        return True

    def surveyed(self, xmin: int, own: int | None, first: int | None) -> None:
        """What a snapshot says that was taken after everything that was `seen`.

        `own` is the number of the claim's transaction, if it has one. `first` is the first waiting event at or above
        the floor, claimed or not; None if there is none.
        """
        issued = self._issued
        if issued is not None and xmin >= issued.bound:
            self.position = issued.top + 1 if first is None else min(first, issued.top + 1)
            issued = None
        if issued is None and self._top and own is not None:
            issued = _Issued(self._top, own)
        self._issued = issued
