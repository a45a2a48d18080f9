"""The thread that owns a consumer: every call on it is made here, and polling never depends on handlers.

The loop and this thread share a few values under one lock: records fetched and not handed out, commits to
send, what is in hand. Each side changes them in short stretches and wakes the other.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.errors import QuiesceError, Unavailable
from quiesce.inbox.assignment import Assignment
from quiesce.inbox.record import Batch, Record, TopicPartition
from quiesce.kafka.blocking import on_loop, settle_on_loop
from quiesce.kafka.commit import Answer, Commit, Commits
from quiesce.kafka.records import as_partitions, as_record, shown
from quiesce.kafka.settings import Settings, refused_settings
from quiesce.kafka.troubles import Troubles
from quiesce.kafka.verdict import named

_LOG = logging.getLogger("quiesce.kafka")

_PROBE = 5.0
"""Seconds that opening waits for a broker."""
_POLL = 0.05
_POLL_BUSY = 0.01
"""Seconds of one poll while a commit may come at any time: nothing ends a poll early but a record."""
_PAUSE_AFTER = 0.1
"""Seconds that fetched records lie around before the partitions are paused. Pausing throws away what the client
has read ahead, so a handler that keeps up is spared it."""


class Member:
    """A member of a consumer group, and its thread.

    `limit` records are fetched ahead of the one batch in hand. `revoke_bound` is how many seconds a revoke
    waits for work in hand.
    """

    def __init__(
        self, settings: Settings, topics: Sequence[str], limit: int, revoke_bound: float, told: "asyncio.Event"
    ) -> None:
        self._settings = settings | {"error_cb": self._on_error}
        self._topics = topics
        self._limit = limit
        self._revoke_bound = revoke_bound
        self._loop = asyncio.get_running_loop()
        self._told = told
        self._lock = threading.Condition()
        self._assignment = Assignment()
        self._ready: deque[Record] = deque()
        self._commits = Commits()
        self._troubles = Troubles(topics)
        self._rewinds: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._full_since: float | None = None
        self._closing = False
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="quiesce-kafka-consumer", daemon=True)

    # The loop's side.

    def start(self) -> None:
        self._thread.start()

    def take(self, limit: int) -> Batch:
        """Up to `limit` records that are ready; they are in hand from now on.

        Raises:
            QuiesceError: what the client has reported since the last call.
        """
        with self._lock:
            if (trouble := self._troubles.take()) is not None:
                raise trouble
            records = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
            batch = Batch(records, self._assignment.hand_out(records))
            self._lock.notify()
        return batch

    def submit(self, commit: Commit) -> None:
        with self._lock:
            if self._closing:
                commit.refuse("the consumer is closed")
            else:
                self._commits.add(commit)
                self._lock.notify()

    def done(self, number: int) -> None:
        """Nothing of this number is in hand any more. What was not committed will be fetched again."""
        with self._lock:
            back = self._assignment.done(number)
            self._rewinds.update(back)
            self._drop_ready(back.keys())
            self._lock.notify()

    def partitions(self) -> frozenset[TopicPartition]:
        with self._lock:
            return frozenset(self._assignment.partitions)

    def read_ahead(self) -> int:
        with self._lock:
            return len(self._ready)

    def close(self) -> None:
        """Has the thread leave the group; `ended` is done when it has."""
        with self._lock:
            self._closing = True
            self._ready.clear()
            self._lock.notify()

    # The thread's side.

    def _run(self) -> None:
        try:
            consumer = self._open()
        except QuiesceError as error:
            settle_on_loop(self.opened, error)
            return
        settle_on_loop(self.opened, None)
        try:
            while not self._closing:
                self._turn(consumer)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever fetches is told
            with self._lock:
                self._troubles.add(QuiesceError(f"the consumer's thread ended: {error!r}"))
            on_loop(self._loop, self._told.set)
        finally:
            self._leave(consumer)
            # The destructor may wait too, so it runs here.
            del consumer
            settle_on_loop(self.ended, None)

    def _open(self) -> Consumer:
        try:
            consumer = Consumer(self._settings)
        except (KafkaException, TypeError, ValueError) as error:
            raise refused_settings("consumer", error) from error
        try:
            consumer.list_topics(timeout=_PROBE)
            consumer.subscribe(
                list(self._topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        except KafkaException as error:
            consumer.close()
            raise Unavailable(f"no Kafka broker answered: {named(error.args[0])}") from error
        return consumer

    def _turn(self, consumer: Consumer) -> None:
        self._send_next(consumer)
        self._rewind(consumer)
        with self._lock:
            room = self._limit - len(self._ready)
            busy = self._assignment.in_hand() or bool(self._commits)
            if room <= 0 and not self._must_pause():
                # Nothing to ask the client for; it is polled again within the time that pausing takes.
                self._lock.wait(_POLL_BUSY)
                return
        wait = _POLL_BUSY if busy else _POLL
        if room <= 0:
            self._pause(consumer)
        else:
            self._resume(consumer)
        # One record ends the wait, the rest of what is there comes with it. Each is put where a rebalance
        # finds it before the client is called again, for any call may bring one.
        if self._receive(consumer.consume(1, wait)):
            if room > 1:
                self._receive(consumer.consume(room - 1, 0))
            on_loop(self._loop, self._told.set)

    def _must_pause(self) -> bool:
        now = time.monotonic()
        if self._full_since is None:
            self._full_since = now
        return now - self._full_since >= _PAUSE_AFTER

    def _pause(self, consumer: Consumer) -> None:
        """Lays the pause on what is ours now: a rebalance may have brought partitions since."""
        running = set(self._assignment.partitions) - self._paused
        if running:
            consumer.pause([KafkaPartition(*one) for one in running])
            self._paused |= running

    def _resume(self, consumer: Consumer) -> None:
        self._full_since = None
        paused = self._paused & set(self._assignment.partitions)
        if paused:
            consumer.resume([KafkaPartition(*one) for one in paused])
        self._paused.clear()

    def _receive(self, messages: Sequence[Message]) -> bool:
        """Makes records ready; returns whether there was anything."""
        if not messages:
            return False
        records: list[Record] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(as_record(message))
            elif error.code() != KafkaError._PARTITION_EOF:
                with self._lock:
                    self._troubles.in_place_of_record(error, message.topic())
        with self._lock:
            ours = self._assignment.partitions - self._rewinds.keys()
            # librdkafka holds back what was fetched before a rebalance; were one to slip through, it
            # changes nothing here.
            self._ready.extend(record for record in records if record.source in ours)
        return True

    def _send_next(self, consumer: Consumer) -> bool:
        """Sends the next commit, if one waits and may be sent now. Returns whether there was one."""
        with self._lock:
            commit = self._commits.next(self._assignment)
        if commit is None:
            return False
        answer = self._commits.send(consumer, commit)
        with self._lock:
            if answer is Answer.COMMITTED:
                self._assignment.committed(commit.sent, commit.number)
            elif answer is Answer.AGAIN:
                self._commits.again(commit)
        commit.tell()
        return True

    def _rewind(self, consumer: Consumer) -> None:
        """Goes back to what was put away unfinished."""
        with self._lock:
            rewinds = dict(self._rewinds)
        for partition, offset in rewinds.items():
            try:
                consumer.seek(KafkaPartition(*partition, offset))
            except KafkaException as error:
                # Its records are dropped until it works, so nothing is passed over.
                _LOG.info("cannot go back to %s@%d yet: %s", shown([partition]), offset, named(error.args[0]))
                continue
            with self._lock:
                # Unless somebody has put away more of it meanwhile.
                if self._rewinds.get(partition) == offset:
                    del self._rewinds[partition]

    # Rebalances.

    def _on_assign(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        gained = as_partitions(partitions)
        with self._lock:
            self._assignment.gained(gained)
            self._troubles.flows({partition.topic for partition in gained})
            self._paused -= gained
        _LOG.info("assignment %d: gained %s", self._assignment.number, shown(gained))

    def _on_revoke(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        gone = as_partitions(partitions)
        with self._lock:
            self._drop_ready(gone)
        deadline = time.monotonic() + self._revoke_bound
        while self._still_in_hand(gone, deadline):
            # A commit can only be made here, on the thread that the callback blocks.
            if not self._send_next(consumer):
                with self._lock:
                    self._lock.wait(_POLL_BUSY)
        self._let_go(gone, "gave back")

    def _still_in_hand(self, gone: set[TopicPartition], deadline: float) -> bool:
        with self._lock:
            if self._closing or not self._assignment.in_hand(gone):
                return False
        if time.monotonic() < deadline:
            return True
        _LOG.warning(
            "work on %s was not done %g s after the group took it back: its commit will be refused",
            shown(gone),
            self._revoke_bound,
        )
        return False

    def _on_lost(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        gone = as_partitions(partitions)
        with self._lock:
            self._drop_ready(gone)
        self._let_go(gone, "lost")
        _LOG.warning("the group has gone on without us: lost %s", shown(gone))

    def _drop_ready(self, partitions: Collection[TopicPartition]) -> None:
        """With the lock held."""
        if partitions:
            self._ready = deque(record for record in self._ready if record.source not in partitions)

    def _let_go(self, gone: set[TopicPartition], how: str) -> None:
        with self._lock:
            self._assignment.gone(gone)
            self._paused -= gone
            for partition in gone:
                self._rewinds.pop(partition, None)
        _LOG.info("assignment %d: %s %s", self._assignment.number, how, shown(gone))

    # Errors and the end.

    def _on_error(self, error: KafkaError) -> None:
        with self._lock:
            self._troubles.of_client(error)
        on_loop(self._loop, self._told.set)

    def _leave(self, consumer: Consumer) -> None:
        with self._lock:
            self._closing = True
            self._commits.abandon()
        try:
            consumer.close()
        except (KafkaException, RuntimeError) as error:
            _LOG.warning("closing the Kafka consumer: %s", error)
