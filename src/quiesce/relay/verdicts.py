"""What the answers of the broker mean for each event of a claim. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from quiesce.outbox.answers import all_dispatched
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Dead, Dispatched, Outcome, Retry
from quiesce.outbox.retry import RetryPolicy
from quiesce.relay.held_keys import Places, first_places
from quiesce.relay.settings import dead_lets_key_go

_NAME = re.compile(r"[A-Z][A-Z0-9_]{2,60}")


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What to record, event by event. One that has no answer has no outcome, and is free again."""

    outcomes: Mapping[UUID, Outcome]
    dispatched: int
    unanswered: int
    refused: Places
    """Keys of the events that hold others back, and where: they will be offered again, or are dead and hold."""
    reasons: Mapping[str, int]
    """How many events were refused, by the name of the error."""
    letters: Sequence[tuple[ClaimedEvent, str]] = ()
    """Those that are given up for good, and why."""


def judge(
    published: Sequence[ClaimedEvent],
    answers: Mapping[UUID, Outcome],
    retry: RetryPolicy,
    dead_holds_key: Callable[[str], bool] = dead_lets_key_go,
) -> Verdicts:
    """Judges the answers. Only an event that was published and answered gets an outcome."""
    if all_dispatched(answers, published):
        return Verdicts(answers, len(published), 0, {}, {})
    outcomes: dict[UUID, Outcome] = {}
    refused: list[ClaimedEvent] = []
    letters: list[tuple[ClaimedEvent, str]] = []
    reasons = Counter[str]()
    dispatched = 0
    for event in published:
        event_id = event.id
        answer = answers.get(event_id)
        match answer:
            case None:
                continue
            case Dispatched():
                dispatched += 1
                outcomes[event_id] = answer
            case Retry() | Dead():
                outcome = retry.judge(answer, event.attempts)
                reasons[name_of(answer.reason)] += 1
                outcomes[event_id] = outcome
                if isinstance(outcome, Dead):
                    letters.append((event, outcome.reason))
                if isinstance(outcome, Retry) or dead_holds_key(event.topic):
                    refused.append(event)
    unanswered = len(published) - len(outcomes)
    return Verdicts(outcomes, dispatched, unanswered, first_places(refused), dict(reasons), letters)


def name_of(reason: str) -> str:
    """The name that a reason begins with, as in `MSG_SIZE_TOO_LARGE: ...`; "other" if it has none. Few enough for a
    metric's label."""
    name = reason.partition(":")[0]
    return name if _NAME.fullmatch(name) else "other"
