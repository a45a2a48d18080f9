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
    consumer: str
    assignment: int
    partitions: int
    lost: bool
