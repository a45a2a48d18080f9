"""The source: records in from Kafka, as a member of a consumer group."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from quiesce.errors import IntakeClosed, SettingsError, Unavailable
from quiesce.inbox.beyond import Beyond
from quiesce.inbox.record import Batch, TopicPartition
from quiesce.kafka.commit import Commit
from quiesce.kafka.consumer_settings import member_settings
from quiesce.kafka.holdings import Holdings
from quiesce.kafka.member import Member
from quiesce.kafka.settings import given_settings
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.events import Event
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed

_EMPTY_AFTER = 1.0
"""Seconds that a fetch waits for a record."""
_OPEN_BOUND = 10.0


class KafkaSource:
    """A `Source` on librdkafka. One thread owns the consumer and polls whatever the handlers do.

    `bootstrap_or_config` is an address, or a mapping of librdkafka settings (TLS, SASL, session);
    `settings` are laid over it. Offsets are committed by `commit` only: a setting that turns auto commit
    or auto offset store on is refused with `SettingsError`. A group without an offset begins at the
    earliest record. Rebalances are cooperative; with `group.protocol=consumer` the broker assigns. A member
    with a `group.instance.id` does not leave the group when it closes.

    `max_poll_records`, and about `max_poll_bytes`, are read ahead of what is in hand. `revoke_bound` is how
    many seconds a rebalance waits for what is in hand of a partition before it is given back; commits are
    served meanwhile.

    An assignment's number grows with every change. Work handed out under a number may be committed for
    each partition that has been ours without a break since then: a cooperative rebalance does not touch
    work on the partitions that stay.
    """

    def __init__(
        self,
        bootstrap_or_config: str | Mapping[str, object],
        *topics: str,
        group: str,
        name: str | None = None,
        part: Part = Part.PRODUCERS,
        max_poll_records: int = 2000,
        max_poll_bytes: int = 16_000_000,
        revoke_bound: float = 5.0,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        given = given_settings(bootstrap_or_config, settings or {})
        self._settings = member_settings(
            given,
            group,
            read_ahead=max_poll_records,
            read_ahead_bytes=max_poll_bytes,
            revoke_bound=revoke_bound,
        )
        if not topics or not all(topics):
            raise SettingsError("setting 'topics' of the Kafka consumer: got none, takes one topic at least")
        self._topics = topics
        self.revoke_bound = revoke_bound
        self._member: Member | None = None
        self._holdings: Holdings | None = None
        self._told = asyncio.Event()
        self._watcher: Callable[[], None] = _nobody
        self.name = name or f"kafka-consumer {group}"
        self.part = part

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """What the group has given us, now."""
        return self._member.holdings.partitions if self._member else frozenset()

    @property
    def leaving(self) -> frozenset[TopicPartition]:
        """What the group takes back right now. It waits for what is in hand of it, up to `revoke_bound`."""
        return self._member.holdings.leaving if self._member else frozenset()

    @property
    def read_ahead(self) -> int:
        """Records fetched and not handed out yet."""
        return self._member.holdings.read_ahead() if self._member else 0

    def ours(self, assignment: int, partition: TopicPartition) -> bool:
        """Whether work of this partition that was handed out under the number may still be committed."""
        return self._member is not None and self._member.holdings.ours(assignment, partition)

    def watch(self, changed: Callable[[], None]) -> None:
        """Has `changed` called on the loop whenever `leaving` or our partitions have changed. One watcher."""
        self._watcher = changed

    def news(self, consumer: str) -> Sequence[Event]:
        """`AssignmentChanged` and `PositionReset` since the last call, in this consumer's name."""
        return self._holdings.news(consumer) if self._holdings else ()

    async def open(self) -> "KafkaSource":
        """Makes the consumer, waits for a broker to answer and subscribes; not for an assignment.

        Raises:
            Unavailable: no broker answered within five seconds. Nothing is left behind.
            SettingsError: librdkafka refused a setting.
        """
        if self._member is not None:
            return self
        member = Member(self._settings, self._topics, self._told, self._has_changed)
        member.start()
        try:
            async with asyncio.timeout(_OPEN_BOUND):
                await member.opened
        except TimeoutError as error:
            member.close()
            raise Unavailable("no Kafka broker answered") from error
        except BaseException:
            member.close()
            raise
        self._member, self._holdings = member, member.holdings
        return self

    async def fetch(self, limit: int, *, full: Collection[TopicPartition] = ()) -> Batch:
        """Waits for up to `limit` records, none of the partitions in `full`. A cancel loses none: the next call
        has them.

        Returns an empty batch after a second without a record. One call at a time.

        Raises:
            Unavailable: brokers, group or topics cannot be reached. It may be called again, and raises this after
                each such second for as long as it lasts.
            SettingsError: the broker refused a setting of the group.
            QuiesceError: the consumer is broken for good.
            IntakeClosed: it is not open.
        """
        until = time.monotonic() + _EMPTY_AFTER
        while True:
            if self._member is None:
                raise IntakeClosed(f"{self.name} is not open: nothing can be fetched")
            self._told.clear()
            left = until - time.monotonic()
            batch = self._member.take(limit, full, waited=left <= 0)
            if batch or left <= 0:
                return batch
            try:
                async with asyncio.timeout(left):
                    await self._told.wait()
            except TimeoutError:
                pass

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        assignment: int,
        deadline: Deadline,
        *,
        beyond: Mapping[TopicPartition, Beyond] | None = None,
    ) -> None:
        """Commits the offsets and waits for the broker's answer. Waits a rebalance out.

        `beyond`, what is done behind an offset, is kept as the commit's metadata, in up to 4000 characters: some
        23,000 offsets in any order, and many more where they lie together. No member of the group that reads it is
        given these records again. Clients of another kind do not read it.

        Raises:
            CommitRefused: some of the partitions are not ours any more, or were away meanwhile; the message
                names them. The offsets of the others are committed.
            Unavailable: no answer by the deadline; whether they are committed is unknown.
        """
        if not offsets:
            return
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        commit = Commit(dict(offsets), assignment, deadline.at, answer, dict(beyond or {}))
        if self._member is None:
            commit.refuse("the consumer is closed")
        else:
            self._member.submit(commit)
        try:
            done, _ = await asyncio.wait({answer}, timeout=_seconds(deadline))
        finally:
            commit.given_up = True
            # Nobody waits for what it still comes to.
            answer.cancel()
        if not done:
            raise Unavailable(f"{self.name}: no answer to a commit of {len(offsets)} offsets by the deadline")
        answer.result()

    def done(self, assignment: int, partitions: Collection[TopicPartition] | None = None) -> None:
        """Says that nothing handed out under this number is in hand any more, of these partitions or of any."""
        if self._member is not None:
            self._member.holdings.done(assignment, partitions)

    async def close(self, deadline: Deadline) -> Closed:
        """Leaves the group, bounded. Past the deadline the thread is left to itself; it keeps nothing alive.

        Safe to call twice.
        """
        member, self._member = self._member, None
        if member is None:
            return Closed()
        member.close()
        self._told.set()
        done, _ = await asyncio.wait({member.ended}, timeout=_seconds(deadline))
        if not done:
            return Closed(forced=True, detail="the brokers did not answer; the group notices by its session")
        return Closed()

    def _has_changed(self) -> None:
        self._watcher()


def _seconds(deadline: Deadline) -> float | None:
    remaining = deadline.remaining(time.monotonic())
    return None if remaining == float("inf") else remaining


def _nobody() -> None:
    """Nobody watches."""
