"""What a consumer tells the service's observers. Durations are seconds."""

from dataclasses import dataclass

from quiesce.lifecycle.events import Event


@dataclass(frozen=True, slots=True)
class BatchHandled(Event):
    """One iteration of the consumer is over and its offsets are committed."""

    consumer: str
    records: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CommitLate(Event):
    """Work ended under an assignment that was over; its records are handled again by the new owner."""

    consumer: str
    records: int


@dataclass(frozen=True, slots=True)
class AssignmentChanged(Event):
    """Partitions came or went; so many are ours now. Lost: the group had gone on without us."""

    consumer: str
    assignment: int
    partitions: int
    lost: bool


@dataclass(frozen=True, slots=True)
class PositionReset(Event):
    """Reading begins elsewhere than the group had got to.

    `from_offset` None: the group had no offset. Else the broker does not have that offset (any more): it was
    deleted before it was read, or the topic was made anew.
    """

    consumer: str
    topic: str
    partition: int
    from_offset: int | None
    to_offset: int


@dataclass(frozen=True, slots=True)
class HandlerFailed(Event):
    """A handler raised `error`. `outage`: a server was away, so no attempt is counted."""

    consumer: str
    topic: str
    error: str
    outage: bool


@dataclass(frozen=True, slots=True)
class RecordSetAside(Event):
    """A record was given up for this reason, and is kept among the dead letters."""

    consumer: str
    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class RecordPostponed(Event):
    """A record was put off to a retry topic."""

    consumer: str
    topic: str


@dataclass(frozen=True, slots=True)
class RecordSkipped(Event):
    """A record that no handler can take was passed over, as the policy says."""

    consumer: str
    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class WindowMeasured(Event):
    """What a consumer has in hand: `left` records fetched and not done, `waiting_keys` of which none may begin yet,
    `ahead` records fetched beyond the committed ones, which come again after a crash at most."""

    consumer: str
    left: int
    waiting_keys: int
    ahead: int


@dataclass(frozen=True, slots=True)
class DuplicatesAnswered(Event):
    """Records that an inbox knew: their handler was not called."""

    consumer: str
    records: int
