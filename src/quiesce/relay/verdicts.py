"""What the answers of the broker mean for each event of a claim. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Dead, Dispatched, Outcome, Retry
from quiesce.outbox.retry import RetryPolicy
from quiesce.relay.held_keys import Places, first_places


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What to record, event by event. One that has no answer has no outcome, and is free again."""

    outcomes: Mapping[UUID, Outcome]
    dispatched: int
    unanswered: int
    refused: Places
    """Keys of the events that will be offered again, and where."""


def judge(published: Sequence[ClaimedEvent], answers: Mapping[UUID, Outcome], retry: RetryPolicy) -> Verdicts:
    """Judges the answers. Only an event that was published and answered gets an outcome."""
    outcomes: dict[UUID, Outcome] = {}
    refused: list[ClaimedEvent] = []
    dispatched = 0
    for event in published:
        answer = answers.get(event.id)
        match answer:
            case None:
                continue
            case Dispatched():
                dispatched += 1
                outcomes[event.id] = answer
            case Retry() | Dead():
                outcome = retry.judge(answer, event.attempts)
                outcomes[event.id] = outcome
                if isinstance(outcome, Retry):
                    refused.append(event)
    return Verdicts(outcomes, dispatched, len(published) - len(outcomes), first_places(refused))
