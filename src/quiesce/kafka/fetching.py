"""What polls of a consumer bring: records, ends of partitions and errors, each put where it belongs."""

import time
from collections.abc import Callable, Collection, Sequence

from confluent_kafka import Consumer, KafkaError, Message

from quiesce.inbox.record import TopicPartition
from quiesce.kafka.done_beyond import DoneBeyond
from quiesce.kafka.holdings import Holdings, Plan
from quiesce.kafka.positions import Positions
from quiesce.kafka.records import Reader
from quiesce.kafka.subscription import Subscription
from quiesce.kafka.troubles import Troubles

_POLL = 0.05
"""Seconds of one poll."""
POLL_BUSY = 0.01
"""The same while a commit may come at any time: nothing ends a poll early but a record."""


class Fetching:
    """On the consumer's thread only. `lost` is called when an error says that the group has taken partitions away."""

    def __init__(
        self,
        holdings: Holdings,
        done_beyond: DoneBeyond,
        positions: Positions,
        subscription: Subscription,
        troubles: Troubles,
        lost: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        self._reader = Reader()
        self._holdings = holdings
        self._done_beyond = done_beyond
        self._positions = positions
        self._subscription = subscription
        self._troubles = troubles
        self._lost = lost

    def poll(self, consumer: Consumer, plan: Plan, *, idle: bool) -> bool:
        """Returns whether anything came. `idle`: nothing came last time, so this time it is waited for.

        Each record is put where a rebalance finds it before the client is called again: any call may bring one.
        """
        if not idle and plan.room and self._receive(consumer.consume(plan.room, 0)):
            return True
        # One record ends the wait, the rest of what is there comes with it.
        if not self._receive(consumer.consume(1, POLL_BUSY if plan.busy else _POLL)):
            return False
        if plan.room > 1:
            self._receive(consumer.consume(plan.room - 1, 0))
        return True

    def _receive(self, messages: Sequence[Message]) -> bool:
        """Makes records ready; returns whether there was anything."""
        if not messages:
            return False
        runs, faults = self._reader.read(messages)
        if runs:
            self._subscription.heard({one.topic for one in runs})
            runs = self._done_beyond.left(runs, messages)
            self._holdings.receive(runs, sum(map(len, messages)) / len(messages), time.monotonic())
        for error, partition, offset in faults:
            self._fault(error, partition, offset)
        return True

    def _fault(self, error: KafkaError, partition: TopicPartition | None, offset: int | None) -> None:
        """What came in place of a record."""
        if partition is not None and offset is not None and error.code() == KafkaError._PARTITION_EOF:
            self._subscription.heard({partition.topic})
            self._holdings.at_end(partition, offset)
        elif partition is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._positions.stopped(partition, offset)
        else:
            with self._holdings.lock:
                self._troubles.in_place_of_record(error, partition, ours=partition in self._holdings.partitions)
                useless = self._troubles.broken or self._troubles.slot_is_held
            if useless:
                self._lost(self._holdings.partitions)
