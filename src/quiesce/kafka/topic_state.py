"""What is known of one topic, and what was told of it."""

import logging
from dataclasses import dataclass, field

from quiesce.kafka.topic_answers import Answer
from quiesce.outbox.event import MAX_EVENT_BYTES
from quiesce.outbox.outcome import Dead, Outcome, Retry

_LOG = logging.getLogger("quiesce.kafka")

RECORD_ROOM = 512
"""Bytes that a record may take beside key, value and headers, generously."""


@dataclass(slots=True)
class TopicState:
    """Instants are seconds of one clock."""

    answer: Answer = field(default_factory=Answer)
    wrong: Outcome | None = None
    """What becomes of its events while none can go there."""
    ask_at: float = 0.0
    """When to ask again."""
    refused: int = 0
    """How often in a row the broker refused us without telling our rights."""
    since: float = 0.0
    """Since when something is wrong."""
    doubtful: bool = False
    """It must be asked about before anything more is sent."""
    told: str = ""

    def learn(self, topic: str, answer: Answer) -> None:
        """What the brokers say now. Another number of partitions moves keys, which nobody can mend behind it. A topic
        that takes less than writers may enqueue is told of before an event has died of it."""
        before, now = self.answer.partitions, answer.partitions
        if before and now and now != before:
            _LOG.error(
                "topic %r has %d partitions now, it had %d: keys have moved, so that events of one key stand in two "
                "partitions, and a consumer may see later ones first",
                topic,
                now,
                before,
            )
        limit, enough = answer.limit, MAX_EVENT_BYTES + RECORD_ROOM
        if limit is not None and limit < enough and limit != self.answer.limit:
            _LOG.warning(
                "topic %r takes messages of up to %s bytes (max.message.bytes), and writers may enqueue events of %s: "
                "what is larger than the topic takes becomes a dead letter. Raise it to %s, or enqueue with a smaller "
                "max_event_bytes",
                topic,
                f"{limit:,}",
                f"{MAX_EVENT_BYTES:,}",
                f"{enough:,}",
            )
        self.answer = answer

    def go_wrong(self, topic: str, outcome: Outcome, now: float) -> None:
        """Nothing can go to it."""
        self.wrong = outcome
        assert isinstance(outcome, Dead | Retry)
        self.tell(topic, outcome.reason, now)

    def tell(self, topic: str, wrong: str, now: float) -> None:
        """Logs what is wrong, once for each change; nothing, when all is well."""
        if wrong == self.told:
            return
        if not self.told:
            self.since = now
        if wrong:
            _LOG.warning("topic %r: its events wait, others flow: %s", topic, wrong)
        else:
            _LOG.info("topic %r takes events again after %.1f s", topic, now - self.since)
        self.told = wrong
