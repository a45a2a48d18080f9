"""The retry topic: where records wait for another try, out of the way of those behind them."""

from collections.abc import Callable, Mapping

from quiesce.errors import SetAsideRefused
from quiesce.inbox.reason import Reason
from quiesce.inbox.record import Record
from quiesce.inbox.retry_headers import LONGEST_MESSAGE, SHORT_MESSAGE, origin, with_reason
from quiesce.kafka.dead_letters import by_source, identity_of
from quiesce.kafka.record_client import Outgoing
from quiesce.kafka.record_writer import RecordTooLarge, RecordWriter
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.phases import Part
from quiesce.lifecycle.ports import Closed


class KafkaRetryTopic:
    """A `Postpones`: writes a record that failed to a retry topic, with the time before which it is not tried again.

    **It gives up the order per key.** What comes behind a postponed record of its key is handled before it. Retry in
    place, which is the default of a consumer, keeps the order: the key waits, others flow. Take a retry topic where
    the order does not matter and a key may fail for long.

    The consumer reads the retry topic too: name it beside the source topics. It must be of one consumer group alone,
    or every group would try the record again. The time stands in the record, so a wait goes on after a restart or a
    rebalance, and the offset is not committed before it is over: a waiting record is run by whoever owns its partition.

    Key, value, event id and own headers stay byte for byte, so an inbox still knows the record. Origin and tries are
    kept over all passes. The topic is never created here. Who may write to it decides when records are tried and where
    they are said to come from: give that right to the consumers alone, and to those who redrive.

    Args:
        bootstrap_or_config: an address, or a mapping of librdkafka settings; `settings` are laid over it.
        topic: the name of the retry topic, or a function from the topic in which a record was first read.

    Raises:
        SettingsError: a setting that would break acks, or a wrong argument.
    """

    def __init__(
        self,
        bootstrap_or_config: str | Mapping[str, object],
        topic: str | Callable[[str], str],
        *,
        name: str = "kafka-retry-topic",
        part: Part = Part.PRODUCERS,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.topic_of = by_source("retry topic", topic)
        self._named = topic if isinstance(topic, str) else None
        self._writer = RecordWriter(bootstrap_or_config, settings)
        self.name = name
        self.part = part

    async def open(self) -> "KafkaRetryTopic":
        """Warns if the topic is not there, where it has one name.

        Raises:
            Unavailable: no broker answered within five seconds.
        """
        await self._writer.open()
        if self._named is not None:
            await self._writer.look_at(self._named, "Until then, records that failed stay, and their keys wait")
        return self

    async def close(self, deadline: Deadline) -> Closed:
        """Waits for acks until the deadline; `undelivered` counts those that did not come. Safe to call twice."""
        return await self._writer.close(deadline)

    async def postpone(self, record: Record, reason: Reason, not_before: float, deadline: Deadline) -> None:
        """Returns when the retry topic has the record. `not_before`: seconds since the epoch.

        Raises:
            Unavailable: no ack by the deadline, or the topic does not exist, or may not be written to; which one, the
                message says. Nothing may be committed for it.
            SetAsideRefused: it is too large for the retry topic. It can still be retried in place.
        """
        topic = self.topic_of(origin(record).topic)
        for longest in (LONGEST_MESSAGE, SHORT_MESSAGE):
            headers = with_reason(record, reason, topic, until=not_before, longest_message=longest)
            outgoing = Outgoing(identity_of(record, reason), topic, record.key, record.value, headers)
            try:
                await self._writer.write(outgoing, deadline)
            except RecordTooLarge as error:
                why = error
            else:
                return
        raise SetAsideRefused(f"{record} cannot be postponed: {why}. Raise max.message.bytes of the topic") from why
