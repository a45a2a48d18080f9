"""What is done behind the offsets that the group has: kept with the commits, and passed over when it comes again."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.inbox.beyond import Beyond
from quiesce.inbox.record import Record, TopicPartition
from quiesce.kafka import beyond_text
from quiesce.kafka.records import as_kafka

_LOG = logging.getLogger("quiesce.kafka")

_SHORTEST = 128
"""Characters of a text that has something to say."""

Runs = dict[TopicPartition, list[Record]]


@dataclass(frozen=True, slots=True)
class _Known:
    beyond: Beyond
    epoch: int | None
    """The newest leader epoch of the partition when it was written. An unclean election lets other records take
    numbers that are done: theirs is newer."""


class DoneBeyond:
    """On the consumer's thread only."""

    def __init__(self) -> None:
        self.cluster: str | None = None
        """Its id. Tools copy a group's offsets from one cluster to another, where they mean other records."""
        self._known: dict[TopicPartition, _Known] = {}
        self._longest = beyond_text.LONGEST
        self._told = False

    def begin(self, partition: TopicPartition, offset: int, text: str | None) -> None:
        """The partition is ours from this offset on, and so much the group has beside it."""
        self._known.pop(partition, None)
        if (found := beyond_text.read(text, offset, self.cluster)) is not None:
            self._known[partition] = _Known(*found)
            count = found[0].bits.bit_count()
            _LOG.info("%s[%d]: %d offsets behind %d are done already", *partition, count, offset)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._known.pop(partition, None)

    def left(self, runs: Runs, messages: Sequence[Message]) -> Runs:
        """What of these records is not done."""
        known = [one for one in runs.keys() & self._known.keys() if runs[one][0].offset < self._known[one].beyond.end]
        for partition in known:
            of = self._known[partition]
            epochs = {
                message.offset(): message.leader_epoch()
                for message in messages
                if (message.topic(), message.partition()) == partition
            }
            runs[partition] = [
                record
                for record in runs[partition]
                if record.offset not in of.beyond or _is_newer(epochs[record.offset], of.epoch)
            ]
        return {partition: run for partition, run in runs.items() if run} if known else runs

    def to_commit(
        self, consumer: Consumer, offsets: Mapping[TopicPartition, int], beyond: Mapping[TopicPartition, Beyond]
    ) -> list[KafkaPartition]:
        """As the client takes it. An offset goes further where all behind it is done."""
        commits: list[KafkaPartition] = []
        for partition, offset in offsets.items():
            done = beyond.get(partition, Beyond(offset))
            if (known := self._known.get(partition)) is not None:
                done |= known.beyond
            done = done.settled()
            text = ""
            if done and self._longest:
                text = beyond_text.written(done, self.cluster, self._epoch(consumer, partition), self._longest)
            commits.append(KafkaPartition(*partition, done.base, text))
        return commits

    def committed(self, commits: Sequence[KafkaPartition]) -> None:
        """The group has these, from `to_commit`."""
        for one in commits:
            partition = TopicPartition(one.topic, one.partition)
            found = beyond_text.read(one.metadata, one.offset, self.cluster)
            if found is not None:
                self._known[partition] = _Known(*found)
            else:
                self._known.pop(partition, None)

    def too_long(self, commits: Sequence[KafkaPartition]) -> None:
        """The brokers refuse these for their text: from now on it is shorter, or there is none."""
        longest = max(len(one.metadata or "") for one in commits)
        self._longest = longest // 2 if longest > _SHORTEST else 0
        if not self._told:
            self._told = True
            _LOG.warning(
                "brokers refuse %d characters beside an offset (offset.metadata.max.bytes; 4096 is their default): "
                "some of what is done behind a record that is not may come again when its partition goes",
                longest,
            )

    def _epoch(self, consumer: Consumer, partition: TopicPartition) -> int | None:
        """The newest that was read. The client knows it by itself, and forgets it when it goes back."""
        known = self._known.get(partition)
        before = None if known is None else known.epoch
        try:
            (position,) = consumer.position(as_kafka([partition]))
        except KafkaException:
            return before
        # None where it is not known, whatever the stubs say.
        now: int | None = position.leader_epoch
        return max((one for one in (before, now) if one is not None), default=None)


def _is_newer(epoch: int | None, than: int | None) -> bool:
    return (-1 if epoch is None else epoch) > (-1 if than is None else than)
