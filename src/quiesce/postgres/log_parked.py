"""What is set aside in one lane, in memory: which keys it holds, what is due, and what the table has yet to be told.

Within a key, position is the order. The first event that is not a dead letter is the one to be retried, and those
behind it are held; behind a dead letter that holds its key all are. The table says the same in `state`, so that
a new owner, an operator and `doctor` see it, but nothing here depends on more than the order. Times are
monotonic seconds.
"""

import heapq
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

HELD = "an earlier event of its key is set aside"
GIVEN_BACK = "given back without an answer"


@dataclass(slots=True, eq=False)
class Parked:
    """One event set aside. `claim` has it in hand, if any. A dead one is here only if it holds its key."""

    event_id: UUID
    position: int
    key: str
    reason: str
    attempts: int = 0
    dead: bool = False
    due_at: float = 0.0
    claim: object | None = None
    stored: str | None = None
    """Its state in the table; None where it has no row, or another one than this."""
    gone: bool = False


def _position(parked: Parked) -> int:
    return parked.position


@dataclass(slots=True)
class Changes:
    """What the table has yet to be told: rows to write, as JSON takes them, and rows to delete."""

    write: list[dict[str, Any]] = field(default_factory=list)
    delete: list[UUID] = field(default_factory=list)


class ParkedKeys:
    def __init__(self, lane: int) -> None:
        self._lane = lane
        self._keys: dict[str, list[Parked]] = {}
        # When the first of a key is due. An entry counts if `_queued` says the same.
        self._queue: list[tuple[float, int, str]] = []
        self._queued: dict[str, float] = {}
        self._turn = 0
        self._touched: set[str] = set()
        self._changes = Changes()
        self.count = 0

    def __bool__(self) -> bool:
        return bool(self._keys)

    def holds(self, key: str, position: int) -> bool:
        """Whether an event of this key must wait, because an earlier one does and nobody has it in hand."""
        rows = self._keys.get(key)
        return rows is not None and any(row.claim is None and row.position < position for row in rows)

    def find(self, key: str, event_id: UUID) -> Parked | None:
        return next((row for row in self._keys.get(key, ()) if row.event_id == event_id), None)

    def rows(self) -> Iterable[Parked]:
        return (row for rows in self._keys.values() for row in rows)

    def due(self, now: float, limit: int) -> list[Parked]:
        """Events to be offered now: the first of each key that is due, and those behind it, in order."""
        taken: list[Parked] = []
        looked: list[str] = []
        while self._queue and self._queue[0][0] <= now and len(taken) < limit:
            due_at, _, key = heapq.heappop(self._queue)
            if self._queued.get(key) != due_at:
                continue
            del self._queued[key]
            looked.append(key)
            for row in self._keys.get(key, ()):
                # Behind one that waits for its own time, or is in a claim already, nothing may pass.
                if row.dead or row.claim is not None or row.due_at > now or len(taken) == limit:
                    break
                taken.append(row)
        for key in looked:
            # Whoever takes them marks them; until then they stay due.
            self._wait(key)
        return taken

    def free(self, row: Parked) -> None:
        """Nobody has it in hand any more; it is due as it was."""
        row.claim = None
        if not row.gone:
            self._wait(row.key)

    def load(self, row: Parked) -> None:
        """A row that is in the table as it is here."""
        self._insert(row)
        self._wait(row.key)

    def park(
        self,
        event_id: UUID,
        key: str,
        position: int,
        *,
        due_at: float,
        attempts: int,
        reason: str,
        claim: object = None,
    ) -> Parked:
        row = Parked(event_id, position, key, reason, attempts, due_at=due_at, claim=claim)
        self._insert(row)
        self._touched.add(key)
        return row

    def retry(self, row: Parked, *, due_at: float, attempts: int, reason: str) -> None:
        row.due_at, row.attempts, row.reason, row.stored = due_at, attempts, reason, None
        row.claim = None
        self._touched.add(row.key)

    def redriven(self, row: Parked, due_at: float, attempts: int) -> None:
        """An operator has made it due; the table says so."""
        row.dead, row.due_at, row.attempts, row.stored = False, due_at, attempts, "retry"
        self._touched.add(row.key)
        self._wait(row.key)

    def bury(self, row: Parked, *, attempts: int, reason: str, holds: bool) -> None:
        """It is a dead letter. One that does not hold its key is written down and forgotten here."""
        row.dead, row.attempts, row.reason, row.stored, row.claim = True, attempts, reason, None, None
        self._touched.add(row.key)
        if not holds:
            self._write(row, "dead", 0.0)
            self._remove(row)

    def remove(self, row: Parked, *, in_table: bool = True) -> None:
        """It was dispatched. `in_table` is False where somebody else has deleted its row."""
        if in_table:
            self._changes.delete.append(row.event_id)
        self._remove(row)
        self._touched.add(row.key)

    def changes(self, now: float) -> Changes:
        """What has changed since it was last asked; taken for written from now on."""
        for key in self._touched:
            state = "retry"
            for row in self._keys.get(key, ()):
                wanted = "dead" if row.dead else state
                if row.stored != wanted:
                    self._write(row, wanted, max(0.0, row.due_at - now))
                state = "held"
            self._wait(key)
        self._touched.clear()
        changes, self._changes = self._changes, Changes()
        if changes.delete and changes.write:
            # A statement that writes and deletes one row does neither in a known order.
            deleted = {str(event_id) for event_id in changes.delete}
            changes.write = [row for row in changes.write if row["event_id"] not in deleted]
        return changes

    def _write(self, row: Parked, state: str, wait: float) -> None:
        row.stored = state
        self._changes.write.append(
            {
                "event_id": str(row.event_id),
                "position": row.position,
                "lane": self._lane,
                "key": row.key,
                "state": state,
                # PostgreSQL cannot store NUL, and a reason may quote anything.
                "reason": row.reason.replace("\0", "")[:2000],
                "attempts": row.attempts,
                "wait": wait if state == "retry" else None,
            }
        )

    def _insert(self, row: Parked) -> None:
        insort(self._keys.setdefault(row.key, []), row, key=_position)
        self.count += 1

    def _remove(self, row: Parked) -> None:
        rows = self._keys[row.key]
        rows.remove(row)
        row.gone = True
        self.count -= 1
        if not rows:
            del self._keys[row.key]
        self._wait(row.key)

    def _wait(self, key: str) -> None:
        rows = self._keys.get(key)
        if rows and not rows[0].dead and rows[0].claim is None:
            due_at = rows[0].due_at
            if self._queued.get(key, due_at + 1.0) > due_at:
                self._queued[key] = due_at
                self._turn += 1
                heapq.heappush(self._queue, (due_at, self._turn, key))


Policy = Callable[[str], bool]
"""Whether a dead letter of this topic holds its key."""
