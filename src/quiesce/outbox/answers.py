"""What the broker has answered for the events of one call, as it comes in."""

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import DISPATCHED, Outcome


class Answers(Mapping[UUID, Outcome]):
    """A live mapping from event ids to outcomes; an event without one has not been answered.

    Nearly always all events are acked. So an ack costs one append, on whatever thread, and `all_dispatched` spares
    everybody the look at each of them; the dictionary is made only when somebody asks for one event.
    """

    def __init__(self, events: Sequence[ClaimedEvent]) -> None:
        self.events = events
        """Those that were asked for."""
        self.acked: list[int] = []
        """Places among `events`, in the order of their acks. Append to it."""
        self.refused: dict[UUID, Outcome] = {}
        self.seconds: float | None = None
        """From the hand-over to the last ack, or to the first of a call that grew, where that is known: it may be told
        later."""
        self._found: dict[UUID, Outcome] = {}
        self._looked_at = 0

    @property
    def all_dispatched(self) -> bool:
        return len(self.acked) == len(self.events)

    def __getitem__(self, event_id: UUID) -> Outcome:
        # Asked for event by event where some were refused, and those may be all.
        outcome = self.refused.get(event_id)
        return outcome if outcome is not None else self._all_acked()[event_id]

    def __iter__(self) -> Iterator[UUID]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self.acked) + len(self.refused)

    def __repr__(self) -> str:
        return repr(dict(self._all()))

    def _all(self) -> Mapping[UUID, Outcome]:
        acked = self._all_acked()
        return {**acked, **self.refused} if self.refused else acked

    def _all_acked(self) -> Mapping[UUID, Outcome]:
        if self._looked_at != len(self.acked):
            for place in self.acked[self._looked_at :]:
                self._found[self.events[place].id] = DISPATCHED
                self._looked_at += 1
        return self._found


def all_dispatched(outcomes: Mapping[UUID, Outcome], events: Sequence[ClaimedEvent]) -> bool:
    """Whether it is known, without a look at each, that all of exactly these events were acked."""
    return isinstance(outcomes, Answers) and outcomes.all_dispatched and outcomes.events is events


def seconds_of(outcomes: Mapping[UUID, Outcome]) -> float | None:
    """How long their publishing took, where the answers say so."""
    return outcomes.seconds if isinstance(outcomes, Answers) else None
