"""How large an event may be, and a batch: what the topics take (`max.message.bytes`), and what a producer gathers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quiesce.kafka.outgoing import NOT_FOR_KAFKA, Lot, content_of, size_of, wrong_header
from quiesce.kafka.settings import Settings
from quiesce.kafka.topic_state import TopicState
from quiesce.outbox.event import ClaimedEvent
from quiesce.outbox.outcome import Dead

_BATCH_ROOM = 512
"""Bytes that librdkafka may add to the batch size it was told, generously."""


class SizeLimits:
    """Those of the topics in `known`, which others fill. A topic without a known limit counts as one that takes all.

    `compressed`: batches are, and what that makes of an event only the broker can say: here none is too large.
    """

    def __init__(self, known: Mapping[str, TopicState], *, compressed: bool) -> None:
        self._known = known
        self._compressed = compressed

    def batch_size(self, topics: Iterable[str]) -> int | None:
        """The largest batch that all these topics take, in bytes; None if no limit is known."""
        least = self._least(topics)
        return None if least is None else max(1, least - _BATCH_ROOM)

    def exceeding(self, lot: Lot) -> Sequence[ClaimedEvent]:
        """Those of the events that their topic does not take, or none would."""
        events, least = lot.events, self._least(lot.topics)
        if least is None:
            return [event for event in events if event.headers and self.refusal(event) is not None]
        # A first look that costs little, which nearly every page has to pay.
        small = least // 2
        try:
            return [
                event
                for event, (_, key, _, _, payload, headers) in zip(events, lot.outgoing, strict=True)
                if (headers or (payload and len(payload) > small) or len(key) > small // 4)
                and self.refusal(event) is not None
            ]
        except NOT_FOR_KAFKA:
            # One of them cannot even be measured: it alone is refused.
            return [event for event in events if self.refusal(event) is not None]

    def refusal(self, event: ClaimedEvent) -> Dead | None:
        """What becomes of an event that its topic does not take, or none would; None for one that it takes."""
        try:
            if event.headers and (wrong := wrong_header(event)) is not None:
                return Dead(f"HEADER_NOT_TEXT: {wrong}")
            if not self._exceeds(event):
                return None
        except NOT_FOR_KAFKA as error:
            return Dead(f"cannot be given to Kafka: {error}")
        return Dead(
            f"MSG_SIZE_TOO_LARGE: at least {size_of(event):,} bytes, topic {event.topic!r} takes "
            f"{self._known[event.topic].answer.limit:,} (max.message.bytes)"
        )

    def _least(self, topics: Iterable[str]) -> int | None:
        limits = [limit for topic in topics if topic in self._known and (limit := self._known[topic].answer.limit)]
        return min(limits) if limits else None

    def _exceeds(self, event: ClaimedEvent) -> bool:
        known = self._known.get(event.topic)
        return (
            known is not None
            and known.answer.limit is not None
            and not self._compressed
            and size_of(event) > known.answer.limit
        )


@dataclass(frozen=True, slots=True)
class Batching:
    """How a producer gathers messages into batches, each of which a broker takes or refuses as a whole.

    `size` in bytes, at most; `alone` makes each message a batch of its own.
    """

    size: int
    alone: bool = False

    def settings(self) -> Settings:
        """As librdkafka takes them."""
        settings: Settings = {"batch.size": self.size}
        if self.alone:
            settings["batch.num.messages"] = 1
        return settings

    def within(self, limit: int | None) -> "Batching":
        """Batches that are no larger than this limit in bytes; itself, where they are not."""
        return self if limit is None or limit >= self.size else replace(self, size=limit)

    def was_alone(self, event: ClaimedEvent) -> bool:
        """Whether a batch that the broker found too large can only have had this event in it.

        librdkafka lets a message larger than the batch size travel, and always alone.
        """
        return self.alone or content_of(event) > self.size
