"""Everything that is on a topic, read from its beginning."""

import threading
import time
from collections.abc import Callable, Collection

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from quiesce.drill.audit import Arrival
from quiesce.errors import Unavailable

_PAGE = 1000
_METADATA_BOUND = 10.0


def find_broker(bootstrap: str) -> None:
    """Blocking. Makes sure that somebody answers there.

    Raises:
        Unavailable: nobody does, within 10 s.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "quiesce-drill", "log_level": 0})
    try:
        consumer.list_topics(timeout=_METADATA_BOUND)
    except KafkaException as error:
        raise Unavailable(f"no broker answers at {bootstrap} within {_METADATA_BOUND:g} s") from error
    finally:
        consumer.close()


def read_committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Blocking. Where a group goes on, by partition, where it has committed.

    Raises:
        Unavailable: the broker does not answer.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        partitions = consumer.list_topics(topic, timeout=_METADATA_BOUND).topics[topic].partitions
        asked = [TopicPartition(topic, partition) for partition in partitions]
        places = consumer.committed(asked, timeout=_METADATA_BOUND)
    except KafkaException as error:
        raise Unavailable(f"the offsets of the group {group} cannot be read: {error}") from error
    finally:
        consumer.close()
    return {place.partition: place.offset for place in places if place.offset >= 0}


def read_topic(
    bootstrap: str,
    topic: str,
    expected: Collection[str],
    *,
    quiet: float = 1.0,
    patience: float = 8.0,
    most: float = 60.0,
    cancelled: threading.Event | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> list[Arrival]:
    """Blocking. Reads all partitions until every expected event has come and then nothing for `quiet` seconds.

    Without one of them it goes on until nothing has come for `patience` seconds. Never longer than `most` seconds.
    It counts what comes and asks no watermark, since the embedded broker's are too low.

    Raises:
        Unavailable: the broker does not answer.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            # No member of any group: partitions are assigned by hand and nothing is committed.
            "group.id": "quiesce-drill-audit",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=_METADATA_BOUND).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        return _read(consumer, set(expected), quiet, patience, most, cancelled or threading.Event(), progress)
    except KafkaException as error:
        raise Unavailable(f"the topic {topic} cannot be read: {error}") from error
    finally:
        consumer.close()


def _read(
    consumer: Consumer,
    missing: set[str],
    quiet: float,
    patience: float,
    most: float,
    cancelled: threading.Event,
    progress: Callable[[int], None],
) -> list[Arrival]:
    arrivals: list[Arrival] = []
    end = time.monotonic() + most
    last = time.monotonic()
    while not cancelled.is_set():
        came = [_arrival(message) for message in consumer.consume(_PAGE, 0.2) if _is_event(message)]
        now = time.monotonic()
        if came:
            last = now
            arrivals += came
            missing.difference_update(arrival.event_id for arrival in came)
            progress(len(arrivals))
        elif now - last > (patience if missing else quiet):
            break
        if now > end:
            break
    return arrivals


def _is_event(message: Message) -> bool:
    error = message.error()
    if error is None:
        return True
    if error.code() == KafkaError._ALL_BROKERS_DOWN or error.fatal():
        raise KafkaException(error)
    return False


def _arrival(message: Message) -> Arrival:
    # A list of pairs is what a consumer gets; the annotation also knows the forms that a producer may pass.
    headers: list[tuple[str, object]] = list(message.headers() or [])  # type: ignore[arg-type]
    ids = [value for name, value in headers if name == "id"]
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return Arrival(_text(ids[0] if ids else b""), _text(message.key()), partition, offset)


def _text(raw: object) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw or "")
