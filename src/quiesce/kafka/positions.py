"""Where reading begins: at the group's offset, or where the setting says when there is none or it is gone.

librdkafka would do this silently. Here it is told to stop instead, so that each jump is seen, told and counted,
and an offset that could not be asked for is never taken for none.
"""

import logging
import time
from collections.abc import Collection, Mapping, Set
from enum import Enum

from confluent_kafka import OFFSET_END, OFFSET_INVALID, Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.errors import QuiesceError
from quiesce.inbox.events import PositionReset
from quiesce.inbox.record import TopicPartition
from quiesce.kafka.done_beyond import DoneBeyond
from quiesce.kafka.holdings import Holdings
from quiesce.kafka.records import as_kafka, shown
from quiesce.kafka.verdict import named

_LOG = logging.getLogger("quiesce.kafka")

_ASK = 2.0
"""Seconds that brokers have to answer in: a rebalance waits for it."""
_AGAIN = 0.5
"""Seconds until they are asked again."""


class Start(Enum):
    """`auto.offset.reset`. The values are how brokers are asked for the offset: as a time of its own."""

    EARLIEST = -2
    LATEST = -1
    REFUSE = 0


class Positions:
    """On the consumer's thread only."""

    def __init__(self, holdings: Holdings, done_beyond: DoneBeyond, start: Start, cooperative: bool) -> None:
        self._holdings = holdings
        self._done_beyond = done_beyond
        self._start = start
        self._cooperative = cooperative
        self._unknown: set[TopicPartition] = set()
        self._stopped: dict[TopicPartition, int | None] = {}
        self._begun: dict[TopicPartition, int] = {}
        """Where reading began, for as long as nothing was read."""
        self._out: set[TopicPartition] = set()
        self._not_before = 0.0

    def assign(self, consumer: Consumer, gained: Set[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Answers the group's assignment, with the places to begin at as far as they can be found out now;
        returns these. A partition without one waits at its end, and nothing of it is taken.

        Left to itself, librdkafka asks for the group's offset once, and after an error never begins.

        Raises:
            QuiesceError: there is no such place, and the setting says to go no further.
        """
        self.forget(gained)
        begin = self._begin(consumer, gained)
        self._unknown |= gained - begin.keys()
        self._begun |= begin
        assigned = as_kafka(gained, {one: begin.get(one, OFFSET_END) for one in gained})
        if self._cooperative:
            consumer.incremental_assign(assigned)
        else:
            consumer.assign(assigned)
        return begin

    def gone(self, partitions: Collection[TopicPartition]) -> None:
        self.forget(partitions)
        self._done_beyond.forget(partitions)
        for partition in partitions:
            self._begun.pop(partition, None)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        self._unknown.difference_update(partitions)
        self._out.difference_update(partitions)
        for partition in partitions:
            self._stopped.pop(partition, None)

    def stopped(self, partition: TopicPartition, offset: int | None) -> None:
        """The client has stopped reading, since this offset is not on the broker, or since the log was cut (None)."""
        self._stopped[partition] = offset

    def rewind(self, consumer: Consumer) -> None:
        """Goes back to what was put away unfinished."""
        for partition, offset in self._holdings.rewinds().items():
            try:
                consumer.seek(as_kafka([partition], {partition: offset})[0])
            except KafkaException as error:
                # Its records are dropped until it works, so nothing is passed over.
                _LOG.info("cannot go back to %s@%d yet: %s", shown([partition]), offset, named(error.args[0]))
            else:
                self._holdings.rewound(partition, offset)

    def restart(self, consumer: Consumer) -> None:
        """Goes on with what waits or has stopped, if brokers say where; else in a later turn.

        Raises:
            QuiesceError: the setting says to go no further.
        """
        if not (self._unknown or self._stopped) or time.monotonic() < self._not_before:
            return
        self._not_before = time.monotonic() + _AGAIN
        for partition, offset in self._begin(consumer, self._unknown).items():
            self._holdings.begin_at(partition, offset)
            self._begun[partition] = offset
            self._unknown.discard(partition)
        stopped = dict(self._stopped)
        found = self._ask(consumer, stopped)
        found |= self._still_there(consumer, {one for one in found if stopped[one] is None})
        for partition in self._go_to(consumer, found):
            origin, offset = stopped[partition], found[partition]
            self._begun[partition] = offset
            if origin is None:
                _LOG.warning("%s[%d]: the client has lost its place, reading goes on at %d", *partition, offset)
                self._tell(partition, None, offset)
            else:
                self._jumped(partition, origin, offset)
            if origin is None or offset < origin:
                # The log was cut, or is another one: these are not the records that were here before.
                self._done_beyond.forget([partition])
                self._holdings.anew(partition)
            self.forget([partition])

    def _begin(self, consumer: Consumer, gained: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The places to begin at. One that is left out could not be asked for."""
        begin: dict[TopicPartition, int] = {}
        without: set[TopicPartition] = set()
        try:
            for one in consumer.committed(as_kafka(gained), timeout=_ASK) if gained else ():
                partition = TopicPartition(one.topic, one.partition)
                if one.error is None and one.offset >= 0:
                    begin[partition] = one.offset
                    self._done_beyond.begin(partition, one.offset, one.metadata)
                elif one.error is None and one.offset == OFFSET_INVALID:
                    without.add(partition)
        except KafkaException as error:
            level = logging.INFO if self._unknown else logging.WARNING
            _LOG.log(level, "the group's offsets are not known yet: %s", named(error.args[0]))
            return {}
        for partition, offset in self._ask(consumer, without).items():
            begin[partition] = offset
            self._jumped(partition, None, offset)
        return begin

    def _ask(self, consumer: Consumer, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where these begin, or end, as the setting says."""
        if not partitions:
            return {}
        if self._start is Start.REFUSE:
            names = ", ".join(f"{topic}[{number}]" for topic, number in sorted(partitions))
            raise QuiesceError(
                f"the group's offset of {names} is missing, or not on the broker any more, and "
                "auto.offset.reset=error says to go no further: set the group's offset, or earliest or latest"
            )
        asked = [KafkaPartition(*one, self._start.value) for one in partitions]
        try:
            answers = consumer.offsets_for_times(asked, timeout=_ASK)
        except KafkaException as error:
            _LOG.info("brokers do not say where to begin yet: %s", named(error.args[0]))
            return {}
        return {
            TopicPartition(one.topic, one.partition): one.offset
            for one in answers
            if one.error is None and one.offset >= 0
        }

    def _still_there(self, consumer: Consumer, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's offsets of those partitions of which they are on the broker."""
        there: dict[TopicPartition, int] = {}
        try:
            for one in consumer.committed(as_kafka(partitions), timeout=_ASK) if partitions else ():
                low, high = consumer.get_watermark_offsets(one, timeout=_ASK)
                if one.error is None and low <= one.offset <= high:
                    there[TopicPartition(one.topic, one.partition)] = one.offset
        except KafkaException as error:
            _LOG.info("the group's offsets are not known now: %s", named(error.args[0]))
        return there

    def _go_to(self, consumer: Consumer, found: Mapping[TopicPartition, int]) -> Collection[TopicPartition]:
        """Where the client has stopped it cannot seek: the partition is taken out and put in again.

        Returns where that has worked.
        """
        try:
            if found and not self._cooperative:
                rest = consumer.position(as_kafka(self._holdings.partitions - found.keys()))
                for one in rest:
                    if one.offset < 0:
                        # Nothing of it was read yet. One whose beginning is not known yet waits at its end.
                        one.offset = self._begun.get(TopicPartition(one.topic, one.partition), OFFSET_END)
                consumer.assign([*as_kafka(found, found), *rest])
                return found.keys()
            if out := found.keys() - self._out:
                consumer.incremental_unassign(as_kafka(out))
                self._out |= out
            if found:
                consumer.incremental_assign(as_kafka(found, found))
        except KafkaException as error:
            _LOG.info("cannot begin at another place yet: %s", named(error.args[0]))
            return ()
        return found.keys()

    def _jumped(self, partition: TopicPartition, origin: int | None, offset: int) -> None:
        if origin is None:
            _LOG.info("%s[%d]: the group has no offset, reading begins at %d", *partition, offset)
        else:
            _LOG.warning("%s[%d]: offset %d is not on the broker, reading goes on at %d", *partition, origin, offset)
        self._tell(partition, origin, offset)

    def _tell(self, partition: TopicPartition, origin: int | None, offset: int) -> None:
        self._holdings.tell(lambda consumer: PositionReset(consumer, *partition, origin, offset))
