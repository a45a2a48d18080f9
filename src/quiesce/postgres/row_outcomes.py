"""What became of the events of a claim of the row store, in the form in which it is recorded."""

import json
from collections.abc import Mapping, Sequence
from uuid import UUID

from quiesce.outbox.answers import all_dispatched
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Dead, Dispatched, Outcome, Retry
from quiesce.outbox.ports import Settled

_REASON_LENGTH = 2000
_LONGEST_WAIT = 365 * 24 * 3600.0


class RowOutcomes:
    """The events of a claim, sorted by what became of them. `free` are those to be claimed again."""

    def __init__(self, events: list[ClaimedEvent], positions: list[int], outcomes: Mapping[UUID, Outcome]) -> None:
        self.dispatched: list[int] = []
        self.retry: list[tuple[ClaimedEvent, Retry]] = []
        self.dead: list[tuple[ClaimedEvent, Dead]] = []
        self.free: list[ClaimedEvent] = []
        if all_dispatched(outcomes, events):
            # Nearly always: nothing is asked of each.
            self.dispatched, events = positions, []
        for event in events:
            match outcomes.get(event.id):
                case Dispatched():
                    self.dispatched.append(event.position)
                case Retry() as retry:
                    self.retry.append((event, retry))
                    self.free.append(event)
                case Dead() as dead:
                    self.dead.append((event, dead))
                case None:
                    self.free.append(event)
        released = len(self.free) - len(self.retry)
        self.counted = Settled(len(self.dispatched), len(self.retry), len(self.dead), released)


def as_json(parked: Sequence[tuple[ClaimedEvent, Retry | Dead]]) -> str:
    return json.dumps(
        [
            {
                "event_id": str(event.id),
                "position": event.position,
                "key": event.aggregate_id,
                # PostgreSQL cannot store NUL, and a reason may quote anything.
                "reason": outcome.reason.replace("\0", "")[:_REASON_LENGTH],
                "wait": _within_reason(outcome.wait) if isinstance(outcome, Retry) else None,
                "counts": int(outcome.counts) if isinstance(outcome, Retry) else 1,
            }
            for event, outcome in parked
        ]
    )


def _within_reason(wait: float) -> float:
    return min(wait, _LONGEST_WAIT) if wait > 0 else 0.0
