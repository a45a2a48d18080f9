"""What a relay tells the service's observers. Durations are seconds."""

from dataclasses import dataclass

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
