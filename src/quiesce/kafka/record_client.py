"""One librdkafka producer of single records, and who waits for which ack."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from quiesce.kafka import questions
from quiesce.kafka.blocking import on_loop
from quiesce.kafka.settings import Settings, refused_settings
from quiesce.kafka.verdict import named

_POLL = 0.05
"""Seconds; delivery reports end a poll at once, so this only bounds how long a dropped producer lingers."""
_LATE = 10_000
"""Records whose ack nobody waited for, and which are not offered again."""
_BY_KEY = -1
"""What librdkafka calls a partition that the partitioner chooses."""
NOT_SAID = KafkaError(KafkaError._NO_OFFSET, "a later record was acked, and nothing was said of this one")
"""A broker that knows nothing of a producer yet takes any batch of it. When it has refused the first one, to be tried
again, and taken the second, librdkafka takes that ack for one of both, and drops the first. What it then reports as
delivered has no offset."""

Headers = Sequence[tuple[str, bytes | None]]

Answered = asyncio.Future[KafkaError | int]
"""Has the broker's refusal, or with its ack the offset that the record got."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record on its way out. `partition` None: by its key, as every other producer of Kafka does.

    `identity`: what is written once more under the same one while its ack is still out is not sent twice.
    """

    identity: Hashable
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None = None


class RecordClient:
    """One librdkafka producer and the thread that serves its delivery reports."""

    def __init__(self, settings: Settings) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[tuple[str, Hashable], Answered] = {}
        self._late: dict[tuple[str, Hashable], Answered] = {}
        self.broken: str | None = None
        self.last_error: str | None = None
        try:
            self._producer: Producer | None = Producer(settings | {"error_cb": self._on_error})
        except (KafkaException, TypeError, ValueError) as error:
            raise refused_settings("producer", error) from error
        self.gone = threading.Event()
        self._stop = threading.Event()
        threading.Thread(
            target=_serve,
            args=([self._producer], self._stop, self.gone, self._on_error),
            name="quiesce-kafka-records",
            daemon=True,
        ).start()

    def probe(self, timeout: float) -> Callable[[], bool]:
        """A blocking call, for a thread: whether a broker answers within `timeout` seconds."""
        return partial(questions.probe, self._producer, timeout)

    def queued(self) -> int:
        """Records handed over and not answered."""
        return 0 if self._producer is None else len(self._producer)

    def offer(self, outgoing: Outgoing) -> Answered:
        """Hands it over, unless its ack is out already."""
        flight = (outgoing.topic, outgoing.identity)
        before = self._waiting.get(flight) or self._late.pop(flight, None)
        if before is not None and (not before.done() or isinstance(before.result(), int)):
            return before
        answer: Answered = self._loop.create_future()
        if self._producer is None:
            answer.set_result(KafkaError(KafkaError._PURGE_QUEUE))
            return answer
        try:
            self._producer.produce(
                outgoing.topic,
                outgoing.value,
                outgoing.key,
                headers=list(outgoing.headers),
                on_delivery=partial(self._delivered, answer),
                partition=_BY_KEY if outgoing.partition is None else outgoing.partition,
            )
        except BufferError:
            answer.set_result(KafkaError(KafkaError._QUEUE_FULL))
        except KafkaException as error:
            answer.set_result(error.args[0])
        if not answer.done():
            self._waiting[flight] = answer
            answer.add_done_callback(partial(self._answered, flight))
            self._late.pop(flight, None)
        return answer

    def _answered(self, flight: tuple[str, Hashable], answer: Answered) -> None:
        if self._waiting.get(flight) is answer:
            del self._waiting[flight]

    def keep(self, outgoing: Outgoing, answer: Answered) -> None:
        """Nobody waits for this answer any more. If it is an ack, the next offer of the same record has it."""
        self._late[outgoing.topic, outgoing.identity] = answer
        while len(self._late) > _LATE:
            del self._late[next(iter(self._late))]

    def _delivered(self, answer: Answered, error: KafkaError | None, message: Message) -> None:
        """Called on the poller's thread."""
        told: KafkaError | int | None = error
        if error is None:
            self.last_error = None
            told = message.offset()
        on_loop(self._loop, _settle, answer, NOT_SAID if told is None else told)

    def _on_error(self, error: KafkaError) -> None:
        """Called on the poller's thread. librdkafka mends what is not fatal by itself."""
        if error.fatal():
            self.broken = named(error)
        self.last_error = named(error)

    def drop(self) -> None:
        """Nothing of it reaches a broker any more, and nobody waits for it."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # An error here means a producer that never sent anything.
            with contextlib.suppress(KafkaException):
                producer.purge(blocking=False)
        self._stop.set()
        for answer in tuple(self._waiting.values()):
            _settle(answer, KafkaError(KafkaError._PURGE_QUEUE))


def _serve(
    held: list[Producer], stop: threading.Event, gone: threading.Event, on_error: Callable[[KafkaError], None]
) -> None:
    """Serves delivery reports until `stop`, and sets `gone` once the producer is destroyed."""
    producer = held.pop()
    while not stop.is_set():
        try:
            producer.poll(_POLL)
        except KafkaException as error:
            # A fatal error comes this way and not by error_cb, and may come again at once.
            on_error(error.args[0])
            stop.wait(_POLL)
    # The last reference, so the destructor runs here: it may wait for brokers.
    del producer
    gone.set()


def _settle(answer: Answered, told: KafkaError | int) -> None:
    if not answer.done():
        answer.set_result(told)
