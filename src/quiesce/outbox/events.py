"""What a relay tells the service's observers. Durations are seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quiesce.lifecycle.events import Event


@dataclass(frozen=True, slots=True)
class ClaimSettled(Event):
    """One iteration of the relay is over."""

    relay: str
    dispatched: int
    retried: int
    dead: int
    released: int
    publish_seconds: float
    seconds: float
    """From the claim to the settle."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """How many events were refused, by the name of the error: among them `UNKNOWN_TOPIC_OR_PART`,
    `LEADER_NOT_AVAILABLE`, `TOPIC_AUTHORIZATION_FAILED`, `MSG_SIZE_TOO_LARGE`."""
    waited_seconds: float | None = None
    """From when the transaction of its oldest dispatched event began, by the database's clock, to the last ack of the
    claim, or to the first of one that grew. None: not measured this time."""


@dataclass(frozen=True, slots=True)
class MarksMissing(Event):
    """Events were published, and that was not recorded, or nobody knows: they are published again."""

    relay: str
    events: int


@dataclass(frozen=True, slots=True)
class LanesTakenOver(Event):
    """The relay owns lanes that were another's. `seconds`: how long the one that waited longest had no owner that gave
    signs of life."""

    relay: str
    lanes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class InFlightChanged(Event):
    """A claim was made, or is over."""

    relay: str
    events: int
    """Claimed and not settled."""
    limit: int
    """How many may be: so many as a stop can finish at the pace at which the broker answers."""
    most: int
    """How many may be at most, whatever is measured."""
    pace: float | None
    """Events a second, at least, that the broker answers; None before anything is measured."""
    within: float
    """Seconds that a stop has for what is in flight."""


@dataclass(frozen=True, slots=True)
class OutageBegan(Event):
    """The relay claims nothing more until the broker or the database answers again."""

    relay: str
    what: str


@dataclass(frozen=True, slots=True)
class OutageEnded(Event):
    relay: str
    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ProducerDiscarded(Event):
    """The producer was given up as a whole; `messages` had no answer and are published again."""

    relay: str
    reason: str
    messages: int


@dataclass(frozen=True, slots=True)
class OutboxMeasured(Event):
    """What the tables said a moment ago. Numbers of events."""

    outbox: str
    waiting: int
    exact: bool
    """False: `waiting` is estimated, since counting so many takes too long."""
    oldest_seconds: float
    """How long the event that has waited longest has; 0 where none waits."""
    retry: int
    held: int
    dead: int
    paused: bool
    owned_lanes: int | None
    """Lanes of the log store that a relay owns; None for the row store."""
