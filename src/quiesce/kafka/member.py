"""The thread that owns a consumer: every call on it is made here, and polling never depends on handlers."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException

from quiesce.errors import QuiesceError, Unavailable
from quiesce.inbox.record import Batch, TopicPartition
from quiesce.kafka.blocking import on_loop, settle_on_loop
from quiesce.kafka.commit import Commit
from quiesce.kafka.consumer_settings import MemberSettings
from quiesce.kafka.done_beyond import DoneBeyond
from quiesce.kafka.fetching import POLL_BUSY, Fetching
from quiesce.kafka.holdings import Holdings
from quiesce.kafka.loop_watch import LoopWatch
from quiesce.kafka.pauses import Pauses
from quiesce.kafka.positions import Positions
from quiesce.kafka.rebalances import Rebalances
from quiesce.kafka.sender import Sender
from quiesce.kafka.settings import refused_settings
from quiesce.kafka.subscription import Subscription
from quiesce.kafka.troubles import Troubles
from quiesce.kafka.verdict import named

_LOG = logging.getLogger("quiesce.kafka")

_PROBE = 5.0
"""Seconds that opening waits for a broker."""
_SLOT_AGAIN = 1.0
"""Seconds between two tries to get a static member's place that somebody holds still."""


class Member:
    """A member of a consumer group, and its thread.

    `told` is set when there may be something to fetch. `changed` is called on the loop when partitions came,
    are about to go or went.
    """

    def __init__(
        self, settings: MemberSettings, topics: Sequence[str], told: asyncio.Event, changed: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._told = told
        self._closing = False
        self._idle = True
        self._troubles = Troubles(topics, settings.client["group.id"])
        self._pauses = Pauses()
        self.holdings = Holdings(settings.read_ahead, settings.read_ahead_bytes, lambda: on_loop(self._loop, changed))
        self._done_beyond = DoneBeyond(str(settings.client["group.id"]))
        self._positions = Positions(self.holdings, self._done_beyond, settings.start, settings.cooperative)
        self._sender = Sender(self.holdings, self._done_beyond, self._lost)
        self._rebalances = Rebalances(
            self.holdings,
            self._positions,
            self._pauses,
            self._troubles,
            settings.revoke_bound,
            self._sender.send_next,
            LoopWatch(self._loop),
        )
        self._subscription = Subscription(
            topics, self._troubles, self.holdings.lock, self._rebalances.callbacks, choosy=settings.new_protocol
        )
        self._fetching = Fetching(
            self.holdings, self._done_beyond, self._positions, self._subscription, self._troubles, self._lost
        )
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="quiesce-kafka-consumer", daemon=True)

    # The loop's side.

    def start(self) -> None:
        self._thread.start()

    def take(self, limit: int, full: Collection[TopicPartition], *, waited: bool) -> Batch:
        """Up to `limit` records that are ready; they are in hand from now on. `waited`: there were none for a while.

        Raises:
            QuiesceError: what the client has reported since the last call, or, when there are none, what lasts.
        """
        with self.holdings.lock:
            if (trouble := self._troubles.take()) is not None:
                raise trouble
            batch = self.holdings.take(limit, full, time.monotonic())
            if not batch and (trouble := self._troubles.lasts(waited=waited)) is not None:
                raise trouble
        return batch

    def submit(self, commit: Commit) -> None:
        with self.holdings.lock:
            closing = self._closing
            if not closing:
                self.holdings.submit(commit)
        if closing:
            commit.refuse("the consumer is closed")

    def close(self) -> None:
        """Has the thread leave the group; `ended` is done when it has."""
        with self.holdings.lock:
            self._closing = self._rebalances.closing = True
            self.holdings.lock.notify_all()

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
                if self._troubles.slot_is_held:
                    consumer = self._join_again(consumer)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever fetches is told
            self._tell_trouble(error)
        finally:
            self._leave(consumer)
            # The destructor may wait too, so it runs here.
            del consumer
            settle_on_loop(self.ended, None)

    def _open(self) -> Consumer:
        try:
            consumer = Consumer(self._settings.client | {"error_cb": self._on_error})
        except (KafkaException, TypeError, ValueError) as error:
            raise refused_settings("consumer", error) from error
        try:
            self._done_beyond.cluster = self._subscription.begin(consumer, _PROBE)
        except KafkaException as error:
            consumer.close()
            raise Unavailable(f"no Kafka broker answered: {named(error.args[0])}") from error
        return consumer

    def _turn(self, consumer: Consumer) -> None:
        self._sender.turn(consumer, self._idle)
        self._positions.rewind(consumer)
        self._positions.restart(consumer)
        if self._subscription.turn(consumer):
            on_loop(self._loop, self._told.set)
        plan = self.holdings.plan(time.monotonic())
        if plan.paused is None:
            # Nothing to ask the client for; it is polled again within the time that pausing takes. Whoever takes
            # records makes room, which goes before a commit: the loop has nothing to do while that is answered.
            with self.holdings.lock:
                self._idle = self._closing or not self.holdings.lock.wait(POLL_BUSY)
            return
        self._pauses.apply(consumer, plan.partitions, plan.paused)
        self._idle = not self._fetching.poll(consumer, plan, idle=self._idle)
        if not self._idle and not self._told.is_set():
            on_loop(self._loop, self._told.set)

    def _lost(self, partitions: Collection[TopicPartition]) -> None:
        self._rebalances.lost(partitions)

    # Errors and the end.

    def _on_error(self, error: KafkaError) -> None:
        with self.holdings.lock:
            self._troubles.of_client(error)
        on_loop(self._loop, self._told.set)

    def _tell_trouble(self, error: Exception) -> None:
        if not isinstance(error, QuiesceError):
            error = QuiesceError(f"the consumer's thread ended: {error!r}")
        with self.holdings.lock:
            self._troubles.add(error)
        on_loop(self._loop, self._told.set)

    def _join_again(self, consumer: Consumer) -> Consumer:
        """Leaves the group as one that has no place in it, and tries again until there is one, or a close."""
        self._close(consumer)
        while True:
            with self.holdings.lock:
                self.holdings.lock.wait_for(lambda: self._closing, _SLOT_AGAIN)
                self._troubles.slot_is_held = False
            if self._closing:
                return consumer
            try:
                return self._open()
            except Unavailable as error:
                self._tell_trouble(error)

    def _close(self, consumer: Consumer) -> None:
        if self._subscription.end():
            consumer.close()
        else:
            _LOG.error("the Kafka consumer is not closed, since librdkafka does not come back from a question")

    def _leave(self, consumer: Consumer) -> None:
        with self.holdings.lock:
            self._closing = self._rebalances.closing = True
        self.holdings.abandon_commits()
        try:
            self._sender.send_tails(consumer)
            self._close(consumer)
        except KafkaException as error:
            _LOG.warning("closing the Kafka consumer: %s", named(error.args[0]))
        except RuntimeError:
            pass  # It was closed while it waited for its place.
        if self._settings.instance is not None:
            _LOG.info(
                "static member %r keeps its partitions: another one gets them after %s",
                self._settings.instance,
                "the group's session timeout" if (session := self._settings.session) is None else f"{session:g} s",
            )
