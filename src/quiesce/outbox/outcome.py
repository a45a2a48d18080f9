"""What became of one event."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The broker has acked it. Only a delivery report says so."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Refused for a reason that may pass, such as a missing topic. Its key waits, others flow."""

    reason: str
    wait: float = 1.0
    """Seconds until it is offered again."""
    counts: bool = True
    """Whether it counts as an attempt. Not so for an outage of a part, such as a partition without a leader: it
    ends by itself, and no event may become a dead letter for it."""


@dataclass(frozen=True, slots=True)
class Dead:
    """It can never be published, such as one over the broker's size limit. It becomes a dead letter."""

    reason: str


Outcome = Dispatched | Retry | Dead

DISPATCHED = Dispatched()
"""The one instance that is needed: a batch of thousands shares it."""
