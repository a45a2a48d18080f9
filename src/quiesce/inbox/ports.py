"""Where records come from, and where those go that a consumer gives up, postpones or counts."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from quiesce.inbox.beyond import Beyond
from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Batch, Record, TopicPartition
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed


class Source(Protocol):
    """A member of a consumer group. A `Resource` of part `producers`.

    Each assignment has a number. Records and commits carry it, so that an end that comes after the
    partitions were taken away is refused instead of undoing what the new owner did.
    """

    @property
    def name(self) -> str: ...

    @property
    def part(self) -> Part: ...

    async def open(self) -> "Source": ...

    async def close(self, deadline: Deadline) -> Closed:
        """Leaves the group, bounded. Safe to call twice."""
        ...

    async def fetch(self, limit: int, *, full: Collection[TopicPartition] = ()) -> Batch:
        """Waits for up to `limit` records of one assignment. A cancel loses none: the next call has them.

        None come of the partitions in `full`, whose records wait in the source: back-pressure stops these
        partitions alone, the others flow. Of one partition the records come in order.

        It returns an empty batch at least once a second, so that nobody waits on it for ever.

        Raises:
            Unavailable: the group or the brokers cannot be reached and have said so.
        """
        ...

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        assignment: int,
        deadline: Deadline,
        *,
        beyond: Mapping[TopicPartition, Beyond] | None = None,
    ) -> None:
        """Commits the offsets and waits for the broker's answer. Waits a rebalance out.

        `beyond`: what is done behind the offset of a partition. Whoever gets it next, this member after a `done`
        included, is not given these records any more, as far as the source can keep that.

        A partition may be committed under `assignment` while it has been ours without a break since that
        number: a rebalance that leaves it alone does not touch the work on it.

        Raises:
            CommitRefused: some of the partitions are not ours any more, or were away meanwhile. Their offsets
                are not committed; those of the others are.
            Unavailable: no answer by the deadline; whether they are committed is unknown.
        """
        ...

    def done(self, assignment: int, partitions: Collection[TopicPartition] | None = None) -> None:
        """Says that nothing handed out under this number is in hand any more, of these partitions or of any.

        A revoke waits for it, bounded. What is committed to its end is out of hand without it.

        Records that were fetched and not committed are delivered again, as far as their partition is still
        ours: else the next commit would pass over them. With them comes all that was handed out of the
        partition later, so a partition is put away under all its numbers at once.
        """
        ...

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """What the group has given us, now."""
        ...

    @property
    def leaving(self) -> frozenset[TopicPartition]:
        """What the group takes back right now: begin nothing more; finish what has begun, commit, `done`.

        It may still be committed. The group waits for it, up to the revoke bound.
        """
        ...

    def ours(self, assignment: int, partition: TopicPartition) -> bool:
        """Whether work of this partition that was handed out under the number may still be committed."""
        ...

    def watch(self, changed: Callable[[], None]) -> None:
        """Has `changed` called on the loop whenever `leaving` or our partitions have changed. One watcher."""
        ...

    def news(self, consumer: str) -> Sequence[Event]:
        """What happened to our partitions since the last call, for observers, told in this consumer's name."""
        ...


@runtime_checkable
class SaysRevokeBound(Protocol):
    """A source that says how long it waits, in seconds, before it lets go of what the group takes back."""

    @property
    def revoke_bound(self) -> float: ...


class SetsAside(Protocol):
    """Takes the records that are given up, with the reason. A `Resource` of part `producers`."""

    @property
    def name(self) -> str: ...

    @property
    def part(self) -> Part: ...

    async def open(self) -> "SetsAside": ...

    async def close(self, deadline: Deadline) -> Closed: ...

    async def set_aside(self, record: Record, reason: Reason, deadline: Deadline) -> None:
        """Returns when it is kept where it outlives this process: its offset may be committed then. What the
        `quiesce-` headers of the record say may be believed: the consumer has left out those that may not.

        A record may be kept twice, such as when its ack came too late.

        Raises:
            Unavailable: not by the deadline, or not as things are (no broker, no such topic, no right to write to
                it; the message says which). Nothing may be committed; try again.
            SetAsideRefused: this record never will be, as the settings are. Nothing may be committed.
        """
        ...


class Postpones(Protocol):
    """Takes records that are to be tried later, out of the way of those behind. A `Resource` of part `producers`."""

    @property
    def name(self) -> str: ...

    @property
    def part(self) -> Part: ...

    async def open(self) -> "Postpones": ...

    async def close(self, deadline: Deadline) -> Closed: ...

    def topic_of(self, source: str, /) -> str:
        """The topic that records first read from `source` wait in. The consumer believes the headers about tries and
        waiting there, and nowhere else: anybody may write such headers."""
        ...

    async def postpone(self, record: Record, reason: Reason, not_before: float, deadline: Deadline) -> None:
        """Returns when it is kept where it outlives this process. `not_before` is seconds since the epoch.

        Raises: as `SetsAside.set_aside`.
        """
        ...


class CountsStarts(Protocol):
    """Counts where it outlives the process how often a record was begun and never ended: such a one may have killed
    its process."""

    async def began(self, consumer: str, records: Sequence[Record], *, alone: bool = False) -> Sequence[int]:
        """Notes that these are begun now, and says of each how often it was begun before and never ended.

        If one of them was, **none of the call is noted**: nobody knows yet which of those that were in hand together
        was to blame. Begin them one by one then, with nothing else in hand, each by a call of its own with `alone`,
        which is always noted. So innocent neighbours never count more than one start.

        Raises:
            Unavailable: the database does not answer. Nothing is noted.
        """
        ...

    async def ended(self, consumer: str, records: Sequence[Record]) -> None:
        """They did not kill the process: handled, failed as an attempt, set aside, or aborted by a stop. To be called
        before their partition is given back.

        It never raises: what it cannot write makes a later owner careful, and no more.
        """
        ...


@runtime_checkable
class KeepsStarts(Protocol):
    """A `CountsStarts` whose `close` tells that all in hand has ended, unless it is told otherwise."""

    def keep(self, consumer: str, records: Sequence[Record]) -> None:
        """A handler of these cannot be ended, and ends its process: their starts stay, as if it had been killed."""
        ...


@runtime_checkable
class AnswersProbes(Protocol):
    """A `CountsStarts` that can say whether its database is there: mostly it is the handlers' own."""

    async def probe(self) -> None:
        """
        Raises:
            Unavailable: it does not answer.
        """
        ...
