"""Sends commits on the consumer's thread: those that somebody waits for, and ends that no record stands at."""

import logging
import time
from collections.abc import Callable, Collection

from confluent_kafka import Consumer, KafkaException

from quiesce.inbox.record import TopicPartition
from quiesce.kafka.commit import Answer, send
from quiesce.kafka.done_beyond import DoneBeyond
from quiesce.kafka.holdings import Holdings
from quiesce.kafka.records import as_kafka, shown
from quiesce.kafka.verdict import named

_LOG = logging.getLogger("quiesce.kafka")

_EVERY = 0.1
"""Seconds between two commits while records keep coming: nothing is fetched while one is answered."""


class Sender:
    """`lost` is called when the group refuses a commit since it does not know us any more."""

    def __init__(
        self, holdings: Holdings, done_beyond: DoneBeyond, lost: Callable[[Collection[TopicPartition]], None]
    ) -> None:
        self._holdings = holdings
        self._done_beyond = done_beyond
        self._lost = lost
        self._last = 0.0

    def turn(self, consumer: Consumer, idle: bool) -> None:
        """Sends what waits. While records keep coming it waits a little, and goes with what comes meanwhile."""
        due = time.monotonic() - self._last >= _EVERY
        if idle or due:
            self.send_next(consumer)
        if due:
            self.send_tails(consumer)

    def send_next(self, consumer: Consumer) -> bool:
        """Sends the next commit, if one waits and may be sent now. Returns whether there was one."""
        commit = self._holdings.next_commit()
        if commit is None:
            return False
        answer = send(consumer, commit, self._done_beyond)
        self._last = time.monotonic()
        if answer is Answer.COMMITTED:
            self._holdings.committed(commit.sent)
        elif answer is Answer.AGAIN:
            self._holdings.again(commit)
        elif answer is Answer.LOST:
            # Before the client has noticed, and whether or not it ever does.
            self._lost(self._holdings.partitions)
        commit.tell()
        return True

    def send_tails(self, consumer: Consumer) -> None:
        """Commits the ends that lie behind everything. Nobody waits for it; what fails is tried again."""
        tails = self._holdings.tails()
        if not tails:
            return
        self._last = time.monotonic()
        try:
            offsets = as_kafka(tails, tails)
            consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            _LOG.info("the ends of %s are not committed yet: %s", shown(tails), named(error.args[0]))
        else:
            self._done_beyond.committed(offsets)
            self._holdings.committed(tails)
