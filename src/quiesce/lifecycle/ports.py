"""What the core needs of the world, as Protocols. Nobody inherits from them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, runtime_checkable

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event
from quiesce.lifecycle.phases import Part

T_co = TypeVar("T_co", covariant=True)

OnDrain = Literal["finish", "cancel"]
"""What becomes of the iteration in hand when the worker is told to stop."""


class Clock(Protocol):
    """Monotonic seconds."""

    def now(self) -> float: ...


class Observer(Protocol):
    """Is told every typed event, in order, on the event loop's thread. It must not block."""

    def observe(self, event: Event) -> None: ...


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

    def every(self, seconds: float, *, jitter: float = 0.0) -> AsyncIterator[None]:
        """Yields at once and then every `seconds`; each turn is one iteration. Never yields after stop."""
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
