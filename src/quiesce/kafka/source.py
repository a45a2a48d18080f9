"""The source: records in from Kafka, as a member of a consumer group."""

import asyncio
import time
from collections.abc import Mapping

from quiesce.errors import IntakeClosed, SettingsError, Unavailable
from quiesce.inbox.record import Batch, TopicPartition
from quiesce.kafka.commit import Commit
from quiesce.kafka.member import Member
from quiesce.kafka.settings import consumer_settings, given_settings, whole_number
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed

_EMPTY_AFTER = 1.0
"""Seconds that a fetch waits for a record."""
_OPEN_BOUND = 10.0
_MAX_POLL_INTERVAL = 300_000


class KafkaSource:
    """A `Source` on librdkafka. One thread owns the consumer and polls whatever the handlers do.

    `bootstrap_or_config` is an address, or a mapping of librdkafka settings (TLS, SASL, session);
    `settings` are laid over it. Offsets are committed by `commit` only: a setting that turns auto commit
    or auto offset store on is refused with `SettingsError`. A group without an offset begins at the
    earliest record.

    `max_poll_records` are read ahead of the batch in hand. `revoke_bound` is how many seconds a rebalance
    waits for the batch in hand before its partitions are given back; commits are served meanwhile.

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
        max_poll_records: int = 500,
        revoke_bound: float = 5.0,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        given = given_settings(bootstrap_or_config, settings or {})
        self._settings = consumer_settings(given, group)
        if not topics or not all(topics):
            raise SettingsError("setting 'topics' of the Kafka consumer: got none, takes one topic at least")
        interval = whole_number(given, "max.poll.interval.ms", _MAX_POLL_INTERVAL) / 1000
        if revoke_bound >= interval:
            raise SettingsError(
                f"setting 'revoke_bound' of the Kafka consumer: got {revoke_bound:g} s, takes less than "
                f"max.poll.interval.ms ({interval:g} s): nobody polls while a revoke waits"
            )
        self._topics = topics
        self._limit = max(1, max_poll_records)
        self._revoke_bound = revoke_bound
        self._member: Member | None = None
        self._told = asyncio.Event()
        self.name = name or f"kafka-consumer {group}"
        self.part = part

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """What the group has given us, now."""
        return self._member.partitions() if self._member else frozenset()

    @property
    def read_ahead(self) -> int:
        """Records fetched and not handed out yet. Bounded by `max_poll_records`."""
        return self._member.read_ahead() if self._member else 0

    async def open(self) -> "KafkaSource":
        """Makes the consumer, waits for a broker to answer and subscribes; not for an assignment.

        Raises:
            Unavailable: no broker answered within five seconds. Nothing is left behind.
            SettingsError: librdkafka refused a setting.
        """
        if self._member is not None:
            return self
        member = Member(self._settings, self._topics, self._limit, self._revoke_bound, self._told)
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
        self._member = member
        return self

    async def fetch(self, limit: int) -> Batch:
        """Waits for up to `limit` records. A cancel loses none: the next call has them.

        Returns an empty batch after a second without a record. One call at a time.

        Raises:
            Unavailable: brokers, group or topics cannot be reached and have said so. It may be called again.
            SettingsError: the broker refused a setting of the group.
            QuiesceError: the consumer is broken for good.
            IntakeClosed: it is not open.
        """
        until = time.monotonic() + _EMPTY_AFTER
        while True:
            if self._member is None:
                raise IntakeClosed(f"{self.name} is not open: nothing can be fetched")
            self._told.clear()
            batch = self._member.take(limit)
            left = until - time.monotonic()
            if batch or left <= 0:
                return batch
            try:
                async with asyncio.timeout(left):
                    await self._told.wait()
            except TimeoutError:
                pass

    async def commit(self, offsets: Mapping[TopicPartition, int], assignment: int, deadline: Deadline) -> None:
        """Commits the offsets and waits for the broker's answer. Waits a rebalance out.

        Raises:
            CommitRefused: some of the partitions are not ours any more, or were away meanwhile; the message
                names them. The offsets of the others are committed.
            Unavailable: no answer by the deadline; whether they are committed is unknown.
        """
        if not offsets:
            return
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        commit = Commit(dict(offsets), assignment, deadline.at, answer)
        if self._member is None:
            commit.refuse("the consumer is closed")
        else:
            self._member.submit(commit)
        try:
            done, _ = await asyncio.wait({answer}, timeout=_seconds(deadline))
        finally:
            commit.given_up = True
        if not done:
            raise Unavailable(f"{self.name}: no answer to a commit of {len(offsets)} offsets by the deadline")
        answer.result()

    def done(self, assignment: int) -> None:
        """Says that nothing of this assignment is in hand any more: a revoke waits for it, bounded."""
        if self._member is not None:
            self._member.done(assignment)

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


def _seconds(deadline: Deadline) -> float | None:
    remaining = deadline.remaining(time.monotonic())
    return None if remaining == float("inf") else remaining
