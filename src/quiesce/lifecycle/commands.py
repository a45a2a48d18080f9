"""What the machine wants done. The shell does each, in the order given, and reports back what came of it."""

from dataclasses import dataclass

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.watches import What


@dataclass(frozen=True, slots=True)
class BeginWorkers:
    """Everything is open: the workers may run."""


@dataclass(frozen=True, slots=True)
class BecomeReady:
    pass


@dataclass(frozen=True, slots=True)
class BecomeNotReady:
    """Always the first command of a shutdown (R-SHUT-CFG-3)."""

    reason: str


@dataclass(frozen=True, slots=True)
class ArmHardDeadline:
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class InterruptStart:
    """Cancel the start-up function and every opening in hand; what is open stays so until it is closed in its turn.

    Comes once more where that did not end them and their time is nearly over."""


@dataclass(frozen=True, slots=True)
class FireStop:
    """Close the intake of this worker. From here on it begins nothing new."""

    worker: str
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class ShortenBound:
    """Less time is left than it was told."""

    worker: str
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class ShortenHttp:
    """The same for the requests in flight."""

    deadline: Deadline


@dataclass(frozen=True, slots=True)
class AbortWorker:
    worker: str
    cause: str
    """Why, for people: it travels with the cancel and stands in `stop.abort_cause`."""


@dataclass(frozen=True, slots=True)
class BeginHttpDrain:
    """Close the listener and finish the requests in flight."""

    deadline: Deadline


@dataclass(frozen=True, slots=True)
class AbortHttp:
    pass


@dataclass(frozen=True, slots=True)
class AbortSections:
    """Cancel the critical sections that are still open, so that they unwind before closing begins."""


@dataclass(frozen=True, slots=True)
class CloseResource:
    resource: str
    part: Part
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class GiveUpCloser:
    """The closer has had its time. The next one is called; nobody waits for this one any more."""

    resource: str


@dataclass(frozen=True, slots=True)
class LookAt:
    """Say where this hangs. It has not ended, and `share` of its bound is over; 1.0 is the end of it.

    `name` is a worker's or a resource's; the other kinds have none.
    """

    what: What
    name: str
    share: float


@dataclass(frozen=True, slots=True)
class MakeReport:
    deadline: Deadline


Command = (
    BeginWorkers
    | BecomeReady
    | BecomeNotReady
    | ArmHardDeadline
    | InterruptStart
    | FireStop
    | ShortenBound
    | ShortenHttp
    | AbortWorker
    | BeginHttpDrain
    | AbortHttp
    | AbortSections
    | CloseResource
    | GiveUpCloser
    | LookAt
    | MakeReport
)

Decision = Command | Event
"""What the machine answers with: what is to be done, and what is to be told."""
