"""Writes single records, each with an ack of its own: for dead letters, retries and redrives."""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

from confluent_kafka import KafkaError

from quiesce.errors import IntakeClosed, QuiesceError, Unavailable
from quiesce.kafka.blocking import in_thread, until
from quiesce.kafka.record_client import NOT_SAID, Outgoing, RecordClient
from quiesce.kafka.settings import (
    Settings,
    admin_settings,
    given_settings,
    producer_settings,
)
from quiesce.kafka.topic_answers import Answer, NoBrokerAnswered, ask
from quiesce.kafka.verdict import TOO_LARGE, about_topic, judge, named
from quiesce.lifecycle.deadline import Deadline
from quiesce.lifecycle.ports import Closed
from quiesce.outbox.fields import may_be_a_topic
from quiesce.outbox.outcome import Dead

_LOG = logging.getLogger("quiesce.kafka")

_OURS: Settings = {
    # Each record is a batch of its own: the broker refuses a batch as a whole, and a record must not be cut down, or
    # given up, for its neighbours' size.
    "batch.num.messages": 1,
    "linger.ms": 0,
    # No order is promised here, so that one record's refusal need not stop the others.
    "enable.gapless.guarantee": False,
    # Whoever wrote it has heard `Unavailable` long before and offers it again.
    "message.timeout.ms": 60_000,
}

_PROBE = 5.0
"""Seconds that `open` waits for a broker."""
_ASK = 2.0
"""Seconds for one question about a topic; it is repeated."""
_LOOK = 3.0
"""Seconds for a first look at a topic, which nobody needs yet."""
_TRUSTED = 60.0
"""Seconds for which the answer counts that a topic is there."""
_LAST = 0.5
"""Seconds of a close that are kept for the purge."""


class RecordTooLarge(QuiesceError):
    """The record is over the size limit of topic or client. It never leaves the room."""


class RecordRefused(Unavailable):
    """The topic takes others, and no such record, as one without a key where it is compacted."""


class WrongTopic(Unavailable):
    """The topic is missing, or may not be written to."""


class RecordWriter:
    """An idempotent producer with `acks=all` that answers for each record by itself.

    It creates no topic. It may be used as soon as it is open, from one event loop.
    """

    def __init__(
        self, bootstrap_or_config: str | Mapping[str, object], settings: Mapping[str, object] | None = None
    ) -> None:
        given = given_settings(bootstrap_or_config, settings or {})
        self._settings = producer_settings(given) | _OURS
        self._admin = admin_settings(given)
        self._address = given.get("bootstrap.servers", given.get("metadata.broker.list"))
        self._client: RecordClient | None = None
        self._known: dict[str, tuple[Answer, float]] = {}
        self._asking: dict[str, asyncio.Future[Answer]] = {}
        self._open = False

    async def open(self) -> None:
        """Makes the producer and waits for a broker to answer.

        Raises:
            Unavailable: none did within five seconds. Nothing is left behind.
            SettingsError: librdkafka refused a setting.
        """
        if self._open:
            return
        client = RecordClient(self._settings)
        asked = in_thread("quiesce-kafka-probe", client.probe(_PROBE))
        answered = False
        try:
            done, _ = await asyncio.wait({asked}, timeout=_PROBE + _LAST)
            answered = bool(done) and asked.result()
        finally:
            if not answered:
                client.drop()
        if not answered:
            raise Unavailable(f"no Kafka broker answers at {self._address}: {client.last_error or 'nothing was heard'}")
        self._client, self._open = client, True

    async def look_at(self, topic: str, otherwise: str) -> None:
        """Warns if the topic cannot be written to as things are; `otherwise` says what happens until it can."""
        try:
            await self.know(topic, Deadline(time.monotonic() + _LOOK))
        except Unavailable as error:
            _LOG.warning("%s. %s", error, otherwise)

    async def write(self, outgoing: Outgoing, deadline: Deadline) -> int:
        """Returns when the brokers have it, with the offset that it got.

        Raises:
            Unavailable: no ack by the deadline (it may come yet), or not as things are: `WrongTopic`, `RecordRefused`.
                The message says which, and what to do.
            RecordTooLarge: the topic, or the client, takes no record as large as this one.
            IntakeClosed: it is not open.
        """
        self._usable()
        await self.know(outgoing.topic, deadline)
        error: KafkaError | int = NOT_SAID
        while error is NOT_SAID:
            client = self._usable()
            answer = client.offer(outgoing)
            left = deadline.remaining(time.monotonic())
            done, _ = await asyncio.wait({answer}, timeout=None if left == float("inf") else left)
            if not done:
                # It may have been deleted since, and librdkafka would tell only much later.
                self._known.pop(outgoing.topic, None)
                client.keep(outgoing, answer)
                raise Unavailable(
                    f"topic {outgoing.topic!r}: no ack by the deadline; {client.last_error or 'it may come yet'}"
                )
            error = answer.result()
        if isinstance(error, int):
            return error
        if error.code() in TOO_LARGE:
            raise RecordTooLarge(f"topic {outgoing.topic!r}: {named(error)}")
        if about_topic(error):
            self._known.pop(outgoing.topic, None)
            raise _wrong_topic(outgoing.topic, error)
        if isinstance(judge(error), Dead):
            raise RecordRefused(f"topic {outgoing.topic!r}: {named(error)}")
        if error.fatal() or error.code() in (KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self._replace(client, named(error))
        raise Unavailable(f"topic {outgoing.topic!r}: {named(error)}")

    async def know(self, topic: str, deadline: Deadline) -> Answer:
        """What the brokers say of the topic, asked once a minute.

        Raises:
            Unavailable: it does not exist, may not be seen, or nobody answered by the deadline.
        """
        known = self._known.get(topic)
        if known is not None and known[1] > time.monotonic():
            return known[0]
        if not may_be_a_topic(topic):
            raise Unavailable(f"{topic!r} cannot be the name of a topic: see the setting that names it")
        silence: NoBrokerAnswered | None = None
        while True:
            asked = self._asking.get(topic) or self._ask(topic)
            left = deadline.remaining(time.monotonic())
            done, _ = await asyncio.wait({asked}, timeout=None if left == float("inf") else left)
            if not done:
                told = silence or "no answer yet"
                raise Unavailable(f"topic {topic!r}: no broker said by the deadline whether it exists: {told}")
            try:
                return asked.result()
            except NoBrokerAnswered as error:
                silence = error

    def _ask(self, topic: str) -> "asyncio.Future[Answer]":
        """Shared: many records of one topic may be given up at once."""
        asked = in_thread("quiesce-kafka-topics", lambda: _answer(self._admin, topic))
        self._asking[topic] = asked
        asked.add_done_callback(partial(self._learn, topic))
        return asked

    def _learn(self, topic: str, asked: "asyncio.Future[Answer]") -> None:
        self._asking.pop(topic, None)
        if not asked.cancelled() and asked.exception() is None:
            self._known[topic] = (asked.result(), time.monotonic() + _TRUSTED)

    def _usable(self) -> RecordClient:
        if not self._open or self._client is None:
            raise IntakeClosed("the Kafka producer is not open: nothing can be written")
        if self._client.broken is not None:
            self._replace(self._client, self._client.broken)
        return self._client

    def _replace(self, client: RecordClient, why: str) -> None:
        if self._client is client and self._open:
            _LOG.warning("the Kafka producer is replaced: %s", why)
            client.drop()
            self._client = RecordClient(self._settings)

    async def close(self, deadline: Deadline) -> Closed:
        """Flushes until the deadline, then purges. `undelivered` counts what had no ack. Safe to call twice."""
        client, self._client, self._open = self._client, None, False
        if client is None:
            return Closed()
        now = time.monotonic()
        await until(lambda: not client.queued(), deadline.at - min(_LAST, deadline.remaining(now) / 10))
        undelivered = client.queued()
        client.drop()
        await until(client.gone.is_set, min(time.monotonic() + _LAST, max(deadline.at, now + 0.05)))
        if undelivered:
            return Closed(forced=True, undelivered=undelivered, detail=f"{undelivered} records had no ack")
        return Closed()


def _answer(settings: Settings, topic: str) -> Answer:
    """Blocking. Raises WrongTopic where the topic cannot be written to, NoBrokerAnswered where nobody answers."""
    found = ask(settings, (topic,), _ASK)[topic]
    if isinstance(found, KafkaError):
        raise _wrong_topic(topic, found)
    return found


_ADVICE: Final[Mapping[int, str]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "may not be written to or seen. Grant the right WRITE and DESCRIBE on it",
}


def _wrong_topic(topic: str, error: KafkaError) -> WrongTopic:
    advice = _ADVICE.get(error.code(), "does not exist. Create it: nothing here creates topics")
    return WrongTopic(f"topic {topic!r} {advice} ({named(error)})")
