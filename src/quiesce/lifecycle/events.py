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
    available: float = 0.0
    """Seconds until the hard deadline."""
    scale: float = 1.0
    """Below 1 where less time is left than the budget allows: every part shrinks in proportion."""


@dataclass(frozen=True, slots=True)
class StopHastened(Event):
    """A stop was requested once more, and less time is left than was planned."""

    reason: str
    at: float
    available: float
    """Seconds until the hard deadline."""
    scale: float


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
    """`finished`, `failed`, `aborted`, `handed back` or `abandoned`."""
    seconds: float | None
    """From the instant it was told to stop; None if it ended by itself."""


@dataclass(frozen=True, slots=True)
class WorkerRestarted(Event):
    """It failed and begins again in `wait` seconds; `failures` lie within its policy's window."""

    worker: str
    error: str
    failures: int
    wait: float


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
class RequestsInFlight(Event):
    """How many requests and websockets the application has in hand, told within 0.1 s of a change."""

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
class StillRunning(Event):
    """Something has not ended, and `share` of its bound is over; 1.0 is the end of it. The hang report."""

    what: str
    """`start`, `opening`, `http`, `request`, `worker`, `section`, `closer`, `task` or `thread`."""
    name: str
    age: float | None
    """Seconds: of its iteration, its request, its section, its closing; None where nobody knows."""
    where: str
    """Its innermost await, or where its thread stands: file, line and function."""
    section: str
    """The critical section it is in, or empty."""
    holds: str
    """The resource it holds, as far as that is known, or empty."""
    share: float | None
    """None where somebody asked, and no bound was over."""


@dataclass(frozen=True, slots=True)
class ShutdownEnded(Event):
    reason: str
    seconds: float
    exit_code: int
