"""The two sides of a relay: where events come from, and where they go."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable
from uuid import UUID

from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Takeover:
    """Lanes that were another's are ours now, all at once."""

    lanes: int
    seconds: float
    """How long the one that waited longest had no owner, or a silent one."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a settle recorded: numbers of events."""

    dispatched: int = 0
    retried: int = 0
    dead: int = 0
    released: int = 0
    waited: float | None = field(default=None, compare=False)
    """Seconds from when the transaction of one dispatched event began until now, by the database's clock: of the event
    that has waited longest, more or less. None: it was not looked up this time."""


class Claim(Protocol):
    """Events that nobody else can take until the claim is settled or released. Exactly one of the two."""

    @property
    def events(self) -> Sequence[ClaimedEvent]:
        """In the order of `position`. May be empty."""
        ...

    async def settle(self, outcomes: Mapping[UUID, Outcome]) -> Settled:
        """Records the outcomes and ends the claim; events without one are free again, unchanged.

        Raises:
            ClaimLost: the claim had ended without us; nothing was recorded.
            Unavailable: the database is away; whether it was recorded is unknown.
        """
        ...

    async def release(self) -> None:
        """Ends the claim; every event is free again, unchanged. Never raises for a database that is away."""
        ...


class OutboxStore(Protocol):
    """Where events wait. A `Resource` of part `pools`, with connections of its own."""

    @property
    def name(self) -> str: ...

    @property
    def part(self) -> Part: ...

    async def open(self) -> "OutboxStore": ...

    async def close(self, deadline: Deadline) -> Closed: ...

    async def claim(self, limit: int) -> Claim:
        """Takes up to `limit` events. Bounded. Cancelled, it leaves nothing claimed.

        Several claims may be open at once; no event is in two of them.

        Raises:
            Unavailable: the database cannot be reached now.
            SchemaMissing: the tables are not there.
        """
        ...


@runtime_checkable
class DecidesAboutDead(Protocol):
    """A store by whose policy a dead letter may hold its key back."""

    @property
    def dead_holds_key(self) -> Callable[[str], bool]:
        """Whether one of this topic does."""
        ...


@runtime_checkable
class SaysHowOften(Protocol):
    """A store that knows how often it may be asked while events keep coming."""

    @property
    def poll_interval(self) -> float:
        """Seconds between two claims."""
        ...


@runtime_checkable
class Watches(Protocol):
    """A store that can wait by itself for something to claim."""

    @property
    def watches(self) -> bool:
        """Whether it can now. Behind some poolers it cannot."""
        ...

    async def watch(self, seconds: float, every: float, pause: float = 0.0) -> bool:
        """Waits until there may be something to claim: True; or for `seconds`: False. It looks `every` so many seconds,
        and first after `pause`, so that a few events make one claim.

        One at a time. Cancelled, it leaves nothing behind.

        Raises:
            Unavailable: the database cannot be reached now.
        """
        ...

    def end_watch(self) -> None:
        """Ends the watch under way, at once and more gently than a cancel."""
        ...


@runtime_checkable
class KnowsWhySilent(Protocol):
    """A store that knows what stands between it and its database."""

    @property
    def why_silent(self) -> str:
        """What may be wrong there when no answer comes; empty where nothing stands in between."""
        ...


class GrowingClaim(Claim, Protocol):
    """A claim that can take in another one."""

    def absorb(self, later: "GrowingClaim") -> None:
        """Takes over the events of a claim that was made after it and is over then: `events`, the same sequence as
        before, has them at its end. Not once either is settled or released."""
        ...


@runtime_checkable
class ClaimsAtOnce(Protocol):
    """A store whose watch may have brought what there is to claim."""

    def claim_at_once(self, limit: int) -> GrowingClaim | None:
        """As `claim`, of what the last watch has brought, and not empty. None where the store has to be asked."""
        ...


@runtime_checkable
class LetsGo(Protocol):
    """A store that holds something which others wait for, as a relay's lanes."""

    async def let_go(self) -> None:
        """Holds nothing any more, at once: no claim follows. Bounded; raises nothing for a database that is away."""
        ...


@runtime_checkable
class TakesOver(Protocol):
    """A store that owns something which was another's before."""

    def takeovers(self) -> Sequence[Takeover]:
        """What it has taken over since it was last asked."""
        ...


@runtime_checkable
class WaitsBehindDead(Protocol):
    """A publisher that can keep an event back behind one that it finds dead before it sends anything."""

    def wait_behind_dead(self, holds_key: Callable[[str], bool]) -> None:
        """What comes behind a dead one of its key on a topic for which `holds_key` is a `Retry`."""
        ...


@runtime_checkable
class AddsToCalls(Protocol):
    """A publisher that can make the last call longer while it is under way, so that a trickle of events makes a few
    calls only."""

    def takes(self, events: Sequence[ClaimedEvent], more: Sequence[ClaimedEvent]) -> bool:
        """Whether the call that was given `events`, this very sequence, takes some more now. Nothing is handed over."""
        ...

    def add(self, events: Sequence[ClaimedEvent], known: int) -> None:
        """`events` has grown since `takes` said so, a moment ago: from place `known` on they are handed over."""
        ...


@runtime_checkable
class AnswersLate(Protocol):
    """A publisher that can have several calls end at once, so that they are settled together."""

    def may_answer_late(self, late: bool) -> None:
        """Whether a call of a few events may end some hundredths of a second after its last answer; if not any more,
        those that are answered end at once."""
        ...


class Publisher(Protocol):
    """Where events go. A `Resource` of part `producers`."""

    @property
    def name(self) -> str: ...

    @property
    def part(self) -> Part: ...

    async def open(self) -> "Publisher": ...

    async def close(self, deadline: Deadline) -> Closed:
        """Flushes until the deadline, then purges; `undelivered` counts what was given up."""
        ...

    async def publish(self, events: Sequence[ClaimedEvent]) -> Mapping[UUID, Outcome]:
        """Hands the events over, in order, and returns when the broker has answered for every one.

        Calls may overlap; they are handed over in the order in which they were called, so the order per
        key holds across them. It has no limit of its own: whoever calls it bounds it, and gives up by
        `discard`. A cancel does not take messages back.

        After `discard` it returns what had been answered until then; an event that is missing from the
        result has an unknown outcome, and one may still get its outcome, in the same mapping, until `discard` has
        returned. A producer that breaks by itself ends every call in the same way, and
        until `discard` has replaced it further calls return nothing: what comes behind a gap must wait.
        """
        ...

    async def discard(self, deadline: Deadline) -> int:
        """Gives up as a whole: purges queue and flight, drops the producer, makes a new one.

        Returns how many messages were given up. When it has returned, none of them can reach the
        broker later, except those the network already had. Every `publish` under way returns.
        """
        ...

    async def reachable(self, deadline: Deadline) -> bool:
        """Whether a broker answers before the deadline. Used to end an outage."""
        ...
