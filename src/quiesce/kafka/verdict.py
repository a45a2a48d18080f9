"""What a refusal by the broker or by librdkafka means for one event."""

from confluent_kafka import KafkaError

from quiesce.outbox.outcome import Dead, Retry

LOOK_AGAIN_AFTER = 1.0
"""Seconds after which something that is wrong with a topic is asked about again."""

_DEAD = frozenset(
    {
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_EXCEPTION,
    }
)
"""Whoever offers these bytes again gets the same answer."""

TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
"""Said of a whole batch: it condemns a message only if that was alone in its batch."""

_TOPIC_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})

_NO_ANSWER = frozenset(
    {
        # The broker may have the message: the client lost track of what it had sent.
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.DUPLICATE_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)


def named(error: KafkaError) -> str:
    """The error for people: its name and what librdkafka says about it."""
    text, _, _ = error.str().partition(" (after ")
    return f"{error.name()}: {text}"


def about_topic(error: KafkaError) -> bool:
    """Whether it holds for the topic as it is now: missing, or forbidden."""
    return error.code() in _TOPIC_UNKNOWN or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def judge(error: KafkaError) -> Dead | Retry | None:
    """The outcome of a refused event; None if this was no answer about the event and its fate is unknown.

    Unknown are all of librdkafka's own errors (negative codes: purged, timed out, fatal, one of the others
    in the batch), since none of them is the broker's word on this event.
    """
    code = error.code()
    if code in _TOPIC_UNKNOWN:
        return Retry(named(error))
    if code < 0 or error.fatal() or code in _NO_ANSWER:
        return None
    if code in _DEAD or code in TOO_LARGE:
        return Dead(named(error))
    return Retry(named(error))


def no_leader(topic: str, partition: int, wait: float = LOOK_AGAIN_AFTER) -> Retry:
    """The outcome of an event whose partition has no leader."""
    reason = f"LEADER_NOT_AVAILABLE: partition {partition} of topic {topic!r} has no leader"
    return Retry(reason, wait, counts=False)
