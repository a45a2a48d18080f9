"""What the core needs of the world, as Protocols. Nobody inherits from them."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event
from quiesce.lifecycle.phases import Part

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

OnDrain = Literal["finish", "cancel"]
"""What becomes of the iteration in hand when the worker is told to stop."""


class Clock(Protocol):
    """Monotonic seconds."""

    def now(self) -> float: ...


class Observer(Protocol):
    """Is told every typed event, in order, on the event loop's thread. It must not block."""

    def observe(self, event: Event) -> None: ...


@runtime_checkable
class FlushesTelemetry(Protocol):
    """An observer that keeps telemetry back and sends it in batches. It is flushed inside the part `report`."""

    def flush(self, seconds: float) -> bool:
        """Sends what is kept, within `seconds`; whether all of it went. Runs in a thread of its own."""
        ...


@runtime_checkable
class NamesHolders(Protocol):
    """A resource that knows who has it in use, for the hang report."""

    def holders(self) -> Sequence[tuple[str, str]]:
        """For each use: the name of the task that has it, and what a person wants to know of it."""
        ...


class Stop(Protocol):
    """The token a worker is given: told to stop, until when, and the only door to new iterations.

    It serves coroutines and threads alike. It says *stop* (begin nothing new) and *deadline* (be done by
    then); an *abort*, which is a cancel, comes only past the deadline.
    """

    @property
    def requested(self) -> bool: ...

    @property
    def reason(self) -> str | None: ...

    @property
    def deadline(self) -> Deadline:
        """When what is in hand must be done. `Deadline.never()` until a stop is requested."""
        ...

    @property
    def bound(self) -> float | None:
        """Seconds that there will be once a stop is requested, as the budget has it; None where nobody has said."""
        ...

    @property
    def aborted(self) -> bool:
        """Whether the service has given this worker up: a cancel that comes now is an abort.

        An abort is not an outcome. Code that acknowledges, retries or marks must ask this before it takes a
        cancel, or an error that followed from one, for a failure of the work.
        """
        ...

    @property
    def abort_cause(self) -> str | None:
        """Why, for people. The same words are the message of the `CancelledError`."""
        ...

    def remaining(self) -> float:
        """Seconds to the deadline; infinite until a stop is requested."""
        ...

    async def wait(self) -> None:
        """Returns when a stop is requested."""
        ...

    def wait_sync(self, timeout: float) -> bool:
        """For threads: waits at most `timeout` seconds; True when a stop is requested."""
        ...

    async def sleep(self, seconds: float) -> bool:
        """Sleeps, or returns at once when a stop is requested. True if it slept the whole time."""
        ...

    def sleep_sync(self, seconds: float) -> bool:
        """`sleep` for threads."""
        ...

    async def or_stop(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Awaits an idle wait (a fetch, a queue, a notification), or None when a stop comes first.

        The wait is then cancelled and awaited, for at most a second; what it brings all the same is
        returned, so no item is lost. Not for work in hand: a stop must not tear that.
        """
        ...

    def on_stop(self, wake: Callable[..., object], *args: object) -> None:
        """Calls `wake(*args)` on the loop's thread when a stop is requested, or at once if it was.

        For what blocks a thread in a call of its own: put a sentinel into its queue, shut its socket. It must
        not block.
        """
        ...

    def every(self, seconds: float, *, jitter: float = 0.0) -> AsyncIterator[None]:
        """Yields at once and then every `seconds`; each turn is one iteration. Never yields after stop."""
        ...

    def every_sync(self, seconds: float, *, jitter: float = 0.0) -> Iterator[None]:
        """`every` for threads."""
        ...

    def begin(self, what: str) -> AbstractContextManager[None] | None:
        """The intake: one new iteration, as a context manager, or None once a stop is requested.

        The check and the beginning are one act, so no iteration can slip in behind a stop.
        """
        ...

    def abandon(self, what: str, count: int = 1) -> None:
        """Says that work which had begun was left unfinished. It stands in the report; status 75."""
        ...

    def tell(self, event: Event) -> None:
        """Hands a typed event to the service's observers. Any thread may call it."""
        ...


class Worker(Protocol):
    """A background unit. `run` returns soon after the token says stop, with the work in hand finished.

    It is cancelled only past its deadline, or on a second signal. An exception that leaves `run` stops
    the service.
    """

    @property
    def name(self) -> str: ...

    async def run(self, stop: Stop) -> None: ...


@dataclass(frozen=True, slots=True)
class Closed:
    """How a resource ended.

    `forced`: it did not close by itself in time and was terminated. `undelivered`: messages that a
    producer gave up. `detail`: who held it, for people.
    """

    forced: bool = False
    undelivered: int = 0
    detail: str = ""


class Resource(Protocol[T_co]):
    """Something opened first and closed last, with an honest contract about closing in time."""

    @property
    def name(self) -> str: ...

    @property
    def part(self) -> Part:
        """`Part.PRODUCERS` or `Part.POOLS`: when it is closed."""
        ...

    async def open(self) -> T_co:
        """Opens it and returns what the user works with.

        Raises:
            Unavailable: the server cannot be reached now; the service tries again until its limit.
        """
        ...

    async def close(self, deadline: Deadline) -> Closed:
        """Closes it by `deadline`; what is still held then is terminated. Safe to call twice."""
        ...


@runtime_checkable
class NeedsResources(Protocol):
    """A worker that brings resources of its own: opened before workers begin, closed after all ended."""

    @property
    def resources(self) -> Sequence[Resource[object]]: ...


@runtime_checkable
class TellsFigures(Protocol):
    """A worker with something to say in the report: what it measured, and what a stop could count on."""

    def figures(self) -> str:
        """A few words, or none. It must not block; the hard deadline asks on a thread of its own."""
        ...


@runtime_checkable
class ShowsProgress(Protocol):
    """A worker that says whether it gets on. A probe that sees only that it exists hides a standstill."""

    def why_not_ready(self, now: float) -> str | None:
        """Why the service should count as not ready at `now` (the loop's clock), or None. It must not block."""
        ...
