"""What is done behind the offsets that the group has: kept with the commits, and passed over when it comes again."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.inbox.beyond import Beyond
from quiesce.inbox.record import Record, TopicPartition
from quiesce.kafka import beyond_text
from quiesce.kafka.beyond_text import Where
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

    def __init__(self, group: str) -> None:
        self.cluster: str | None = None
        self._group = group
        self._known: dict[TopicPartition, _Known] = {}
        self._longest = beyond_text.LONGEST
        self._told = False

    def begin(self, partition: TopicPartition, offset: int, text: str | None) -> None:
        """The partition is ours from this offset on, and so much the group has beside it."""
        self._keep(partition, offset, text)
        if (known := self._known.get(partition)) is not None:
            _LOG.info("%s[%d]: %d offsets behind %d are done already", *partition, len(known.beyond), offset)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._known.pop(partition, None)

    def left(self, runs: Runs, messages: Sequence[Message]) -> Runs:
        """What of these records is not done."""
        known = [one for one in runs.keys() & self._known.keys() if runs[one][0].offset < self._known[one].beyond.end]
        for partition in known:
            self._check_held(partition, runs[partition][0])
            self._cut(partition, messages)
            if partition not in self._known:
                continue
            beyond = self._known[partition].beyond
            runs[partition] = [record for record in runs[partition] if record.offset not in beyond]
        return {partition: run for partition, run in runs.items() if run} if known else runs

    def to_commit(
        self, consumer: Consumer, offsets: Mapping[TopicPartition, int], beyond: Mapping[TopicPartition, Beyond]
    ) -> list[KafkaPartition]:
        """As the client takes it. An offset goes further where all behind it is done."""
        commits: list[KafkaPartition] = []
        for partition, offset in offsets.items():
            done = beyond.get(partition, Beyond(offset))
            known = self._known.get(partition)
            if not done and known is None:
                commits.append(KafkaPartition(*partition, offset))
                continue
            position, epoch = _read_up_to(consumer, partition)
            if known is not None:
                # Nobody has seen yet whether what comes is what was done: the offset does not pass over it.
                done = (done | known.beyond.before(position)).settled()
                unseen = Beyond(max(done.base, position), known.beyond.runs).seen_from(max(done.base, position))
                done |= unseen
                epochs = (known.epoch,) if unseen else (known.epoch, epoch)
                epoch = max((one for one in epochs if one is not None), default=None)
            text = beyond_text.written(done, self._where(partition), epoch, self._longest) if self._longest else ""
            commits.append(KafkaPartition(*partition, done.base, text))
        return commits

    def committed(self, commits: Sequence[KafkaPartition]) -> None:
        """The group has these, from `to_commit`."""
        for one in commits:
            self._keep(TopicPartition(one.topic, one.partition), one.offset, one.metadata)

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

    def _keep(self, partition: TopicPartition, offset: int, text: str | None) -> None:
        found = beyond_text.read(text, offset, self._where(partition))
        if found is not None:
            self._known[partition] = _Known(*found)
        else:
            self._known.pop(partition, None)

    def _check_held(self, partition: TopicPartition, first: Record) -> None:
        """Another record where one was held: it is another topic of the same name."""
        beyond = self._known[partition].beyond
        if first.offset == beyond.base and beyond.held not in (None, first.checksum):
            _LOG.warning("%s is not the record that was there: nothing behind it counts as done", first)
            del self._known[partition]

    def _cut(self, partition: TopicPartition, messages: Sequence[Message]) -> None:
        """From the first record on that is newer than the text, nothing that it says is about the records there."""
        if (known := self._known.get(partition)) is None:
            return
        newest = -1 if known.epoch is None else known.epoch
        for message in messages:
            if (
                (message.topic(), message.partition()) == partition
                and (offset := message.offset()) is not None
                and offset in known.beyond
                and (-1 if (epoch := message.leader_epoch()) is None else epoch) > newest
            ):
                self._known[partition] = _Known(known.beyond.before(offset), known.epoch)
                return

    def _where(self, partition: TopicPartition) -> Where:
        return Where(self.cluster, self._group, *partition)


def _read_up_to(consumer: Consumer, partition: TopicPartition) -> tuple[int, int | None]:
    """The offset behind the last record that was read, and its leader epoch. The client knows them by itself."""
    try:
        (position,) = consumer.position(as_kafka([partition]))
    except KafkaException:
        return -1, None
    return position.offset, position.leader_epoch
