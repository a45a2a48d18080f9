"""What a producer can be asked itself: blocking calls, for a thread."""

import contextlib
from collections.abc import Collection

from confluent_kafka import KafkaException, Producer

_LOOK_AGAIN = 1.0
"""Seconds for each topic."""


def probe(producer: Producer | None, timeout: float) -> bool:
    """Whether a broker answers within `timeout` seconds."""
    if producer is None:
        return False
    try:
        producer.list_topics(timeout=max(timeout, 0.001))
    except KafkaException:
        return False
    return True


def look_again(producer: Producer | None, topics: Collection[str]) -> None:
    """Has librdkafka ask about topics. By itself it remembers for minutes that one was missing or forbidden."""
    with contextlib.suppress(KafkaException):
        for topic in topics:
            if producer is not None:
                producer.list_topics(topic, timeout=_LOOK_AGAIN)
