"""Commits of offsets on their way: from the loop to the consumer's thread, to the broker, and back."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.errors import CommitRefused, Unavailable
from quiesce.inbox.assignment import Assignment
from quiesce.inbox.beyond import Beyond
from quiesce.inbox.record import TopicPartition
from quiesce.kafka.blocking import settle_on_loop
from quiesce.kafka.done_beyond import DoneBeyond
from quiesce.kafka.verdict import named

_AGAIN = frozenset(
    {
        # A rebalance is under way: the group takes no commit until it is over. What is still ours then
        # can be committed then.
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError._STATE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError._WAIT_COORD,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RETRY,
        # Without it, then: see `send`.
        KafkaError.OFFSET_METADATA_TOO_LARGE,
    }
)
_NO_LONGER_OURS = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError._ASSIGNMENT_LOST,
    }
)
"""The group has gone on without us, whether or not our client has noticed yet."""

_PAUSE = 0.05
"""Seconds between two tries."""


class Answer(Enum):
    COMMITTED = "committed"
    AGAIN = "again"
    FAILED = "failed"
    LOST = "lost"


@dataclass(eq=False)
class Commit:
    """Offsets to commit, under the number of the assignment that the work began under.

    `deadline` is an instant of the monotonic clock. All but `give_up` happens on the consumer's thread.
    """

    offsets: Mapping[TopicPartition, int]
    number: int
    deadline: float
    answer: "asyncio.Future[None]"
    beyond: Mapping[TopicPartition, Beyond] = field(default_factory=dict)
    sent: Mapping[TopicPartition, int] = field(default_factory=dict)
    not_before: float = 0.0
    given_up: bool = False
    _answered: bool = False
    _verdict: Exception | None = None

    @property
    def refused(self) -> list[TopicPartition]:
        return sorted(self.offsets.keys() - self.sent.keys())

    def judge(self, error: KafkaError | None, partitions: Iterable[KafkaPartition]) -> Answer:
        """What the broker's answer comes to. Whoever waits for it hears of it by `tell`."""
        error = error or next((one.error for one in partitions if one.error), None)
        if error is None:
            # What was not sent is no longer ours.
            self._answered = True
            self._verdict = self._refusal("not ours any more") if self.refused else None
            return Answer.COMMITTED
        if error.code() in _AGAIN and time.monotonic() + _PAUSE < self.deadline:
            self.not_before = time.monotonic() + _PAUSE
            return Answer.AGAIN
        self._answered = True
        if error.code() in _NO_LONGER_OURS:
            self._verdict = self._refusal(named(error))
            return Answer.LOST
        self._verdict = Unavailable(f"offsets were not committed: {named(error)}")
        return Answer.FAILED

    def tell(self) -> None:
        """Ends the commit for whoever waits, unless it is to be tried again."""
        if self._answered:
            settle_on_loop(self.answer, self._verdict)

    def refuse(self, why: str) -> None:
        self.fail(self._refusal(why))

    def fail(self, error: Exception) -> None:
        settle_on_loop(self.answer, error)

    def _refusal(self, why: str) -> CommitRefused:
        names = ", ".join(f"{topic}[{number}]" for topic, number in self.refused or sorted(self.offsets))
        return CommitRefused(f"offsets of {names} were not committed: {why}")


class Commits:
    """The commits that wait for the consumer's thread, in order. The caller holds the lock where it says so.

    A commit is sent and its answer waited for, a few milliseconds: an asynchronous one would be answered
    behind every record that the client has read ahead. What bounds it is `socket.timeout.ms`.
    """

    def __init__(self) -> None:
        self._waiting: deque[Commit] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, commit: Commit) -> None:
        """With the lock held."""
        self._waiting.append(commit)

    def abandon(self) -> None:
        """With the lock held: nothing will be sent any more."""
        for commit in self._waiting:
            commit.fail(Unavailable("the consumer closed before these offsets were committed"))
        self._waiting.clear()

    def next(self, assignment: Assignment) -> Commit | None:
        """With the lock held: the commit to send now. What is not ours any more is refused on the way."""
        while self._waiting:
            commit = self._waiting[0]
            if not commit.given_up and commit.not_before > time.monotonic():
                return None
            self._waiting.popleft()
            if commit.given_up:
                continue
            commit.sent = assignment.ours(commit.offsets, commit.number)
            if commit.sent:
                return commit
            commit.refuse("not ours any more")
        return None

    def again(self, commit: Commit) -> None:
        """With the lock held: in front of all others, so that they reach the broker in order."""
        self._waiting.appendleft(commit)


def send(consumer: Consumer, commit: Commit, done_beyond: DoneBeyond) -> Answer:
    """Sends it and waits for the answer, without the lock."""
    offsets = done_beyond.to_commit(consumer, commit.sent, commit.beyond)
    try:
        answer = commit.judge(None, consumer.commit(offsets=offsets, asynchronous=False))
    except KafkaException as error:
        if error.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
            done_beyond.too_long(offsets)
        return commit.judge(error.args[0], ())
    if answer is Answer.COMMITTED:
        done_beyond.committed(offsets)
        commit.sent = {TopicPartition(one.topic, one.partition): one.offset for one in offsets}
    return answer
