"""What a service tells its observers: typed events, in pairs where something takes time.

Instants (`at`) and durations are seconds of the service's monotonic clock.
"""

from dataclasses import dataclass

from quiesce.lifecycle.phases import Part, Phase


@dataclass(frozen=True, slots=True)
class Event:
    """What all events have in common: nothing but being one."""


@dataclass(frozen=True, slots=True)
class PhaseChanged(Event):
    phase: Phase
    at: float


@dataclass(frozen=True, slots=True)
class ReadinessChanged(Event):
    ready: bool
    reason: str


@dataclass(frozen=True, slots=True)
class SignalReceived(Event):
    number: int
    name: str


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    reason: str
    failed: bool
    at: float


@dataclass(frozen=True, slots=True)
class AbortRequested(Event):
    """Work in hand is given up now: a second signal."""

    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class PartBegan(Event):
    part: Part
    at: float
    bound: float
    """Seconds until this part must be over."""


@dataclass(frozen=True, slots=True)
class PartEnded(Event):
    part: Part
    at: float
    seconds: float
    overran: bool


@dataclass(frozen=True, slots=True)
class WorkerBegan(Event):
    worker: str


@dataclass(frozen=True, slots=True)
class WorkerEnded(Event):
    worker: str
    outcome: str
    """`finished`, `failed`, `aborted` or `abandoned`."""
    seconds: float | None
    """From the instant it was told to stop; None if it ended by itself."""


@dataclass(frozen=True, slots=True)
class IterationEnded(Event):
    worker: str
    seconds: float
    failed: bool


@dataclass(frozen=True, slots=True)
class WorkAbandoned(Event):
    worker: str
    what: str
    count: int


@dataclass(frozen=True, slots=True)
class ResourceOpened(Event):
    resource: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ResourceUnavailable(Event):
    """A resource could not be opened; it is tried again in `wait` seconds."""

    resource: str
    error: str
    attempt: int
    wait: float


@dataclass(frozen=True, slots=True)
class ResourceClosed(Event):
    resource: str
    part: Part
    outcome: str
    """`clean`, `forced`, `failed` or `overran`."""
    seconds: float
    undelivered: int
    detail: str


@dataclass(frozen=True, slots=True)
class ShutdownEnded(Event):
    reason: str
    seconds: float
    exit_code: int
