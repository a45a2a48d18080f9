"""Where a reader of the log stands in one lane, and where it stands after a page. Pure arithmetic.

A cursor is `(seen, last)`: a snapshot, and the highest position ever read. A page holds, in the order of position and
as far as they are visible in the snapshot `until` of the read, the events that are

- **new**: above `last`, whatever `seen` says; or
- **late**: at or below `last` and not visible in `seen`, because their transactions were still open then.

So a transaction that took a small position and commits late is found, and nobody waits for it. While there are more
late events than a page holds, `until` stays the same and `at` says how far in them the reader is: a snapshot that moved
between two such pages would pass over what committed in between below `at`.
"""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Snapshot:
    """PostgreSQL's `pg_snapshot`: numbers below `xmin` have ended, those from `xmax` on had not begun."""

    xmin: int
    xmax: int
    in_progress: tuple[int, ...] = ()
    """Numbers from `xmin` to below `xmax` that had not ended. Ascending."""

    @classmethod
    def parse(cls, text: str) -> "Snapshot":
        """Reads what PostgreSQL writes: `10:20:10,14,15`.

        Raises:
            ValueError: it is nothing of the kind.
        """
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(map(int, running.split(","))) if running else ())

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.in_progress))}"

    def visible(self, xid: int) -> bool:
        """Whether a transaction of this number had ended. (One that was rolled back leaves nothing to be seen.)"""
        return xid < self.xmin or (xid < self.xmax and xid not in self._running)

    @cached_property
    def _running(self) -> frozenset[int]:
        return frozenset(self.in_progress)


NOTHING_SEEN = Snapshot(1, 1)
"""Nothing is visible in it: where a new lane begins."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """`until` and `at` are set while there are more late events than one page holds."""

    seen: Snapshot = NOTHING_SEEN
    last: int = 0
    until: Snapshot | None = None
    at: int | None = None

    def after(self, reached: int, until: Snapshot, *, complete: bool) -> "Cursor":
        """Where the reader stands after a page.

        `reached` is the position of the page's last event. `until` is the snapshot of the read; while `self.until` is
        set, that one counts instead, and the page must hold to it. `complete` says that the page holds all
        there was. The first k events of a page are a page too, that of a smaller limit, and not a complete one.
        An empty page that is complete takes `reached` 0.
        """
        until = self.until if self.until is not None else until
        if complete or reached > self.last:
            # The late ones are all read. What is above `last` counts as new whatever `seen` says.
            return Cursor(until, max(self.last, reached))
        if reached == 0:
            return self
        return Cursor(self.seen, self.last, until, reached)

    def wants(self, position: int, xid: int, until: Snapshot) -> bool:
        """Whether an event belongs to what the reader has yet to read: what the read statement says in SQL."""
        if not (self.until if self.until is not None else until).visible(xid):
            return False
        if position > self.last:
            return True
        return position > (self.at or 0) and not self.seen.visible(xid)
