"""Reads a dead-letter topic as it is now: which letters wait, and which were dealt with."""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from quiesce.errors import SettingsError, Unavailable
from quiesce.inbox.record import Record
from quiesce.inbox.redriven import Offsets, is_mark, take_mark
from quiesce.kafka.records import as_record
from quiesce.kafka.settings import admin_settings, given_settings, refused_settings
from quiesce.kafka.verdict import about_topic, named

_LOG = logging.getLogger("quiesce.kafka")

_ANSWER = 10.0
"""Seconds for one answer of the brokers."""
_GROUP = 5.0
"""The same for the group's: librdkafka asks again and again where it may not."""
_TURN = 0.5
"""Seconds of one wait for a record."""
_PAGE = 500
"""Records of one page."""


def default_group(topic: str) -> str:
    """The group whose committed offsets tell how far the letters of a dead-letter topic are dealt with."""
    return f"{topic}.redrive"


@dataclass(slots=True)
class Shelf:
    """One partition of the topic, as it was when the reader was opened."""

    topic: str
    number: int
    begin: int
    """Where the reader begins."""
    end: int
    waiting_from: int = 0
    """Everything before it is dealt with, or gone."""
    dealt_with: Offsets = field(default_factory=Offsets)


class DeadReader:
    """A reader of one dead-letter topic. Blocking; made, used and closed in one thread at a time.

    It joins no group, so that it disturbs nobody; it only commits in the name of one.
    """

    def __init__(
        self, bootstrap_or_config: str | Mapping[str, object], topic: str, *, group: str | None = None
    ) -> None:
        given = given_settings(bootstrap_or_config, {})
        self.topic = topic
        self.group = group or default_group(topic)
        settings = admin_settings(given) | {
            "group.id": self.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            # A redrive must not be led to letters of a transaction that was rolled back.
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
        }
        self._address = given.get("bootstrap.servers", given.get("metadata.broker.list"))
        self._last_error = ""
        self._commits = True
        try:
            self._consumer = Consumer(settings | {"error_cb": self._on_error})
        except (KafkaException, TypeError, ValueError) as error:
            raise refused_settings("consumer", error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(KafkaException, RuntimeError):
            self._consumer.close()

    def shelves(self, *, all_of_it: bool = False, stopped: Callable[[], bool] = lambda: False) -> list[Shelf]:
        """The partitions with what was dealt with. Reads the topic once, from where something waits.

        `all_of_it`: from the topic's beginning. `stopped`: asked between two pages, and whenever half a second has
        brought none; when it says so there are no shelves, for half of the marks would say that letters wait which do
        not.

        Raises:
            SettingsError: there is no such topic, or we may not read it.
            Unavailable: the brokers do not answer.
        """
        try:
            # All topics: a question about one that is missing may create it.
            found = self._consumer.list_topics(timeout=_ANSWER).topics.get(self.topic)
        except KafkaException as error:
            self._consumer.poll(0)  # has the reasons told
            told = self._last_error or named(error.args[0])
            raise Unavailable(f"no Kafka broker answers at {self._address}: {told}") from error
        if found is None or (found.error is None and not found.partitions):
            raise SettingsError(f"topic {self.topic!r}: does not exist, or may not be seen. Takes a dead-letter topic")
        if found.error is not None:
            raise SettingsError(
                f"topic {self.topic!r}: {named(found.error)}. Takes a topic that exists and may be read"
            )
        numbers = sorted(found.partitions)
        committed = self._committed(numbers)
        shelves = []
        for number in numbers:
            if stopped():
                return []
            with _errors(f"topic {self.topic!r}"):
                low, high = self._consumer.get_watermark_offsets(KafkaPartition(self.topic, number), _ANSWER)
            got_to = committed.get(number, low)
            # Beyond the end: the topic was made anew.
            waiting_from = got_to if low <= got_to <= high else low
            shelves.append(Shelf(self.topic, number, low if all_of_it else waiting_from, high, waiting_from))
        for shelf in shelves:
            for page in self._pages(shelf):
                if stopped():
                    return []
                for record in page:
                    if is_mark(record):
                        take_mark(record, shelf.dealt_with)
        return shelves

    def letters(self, shelf: Shelf) -> Iterator[list[Record]]:
        """The letters on it, in order, page by page, whether dealt with or not; without the marks.

        Raises:
            Unavailable: the brokers do not answer any more.
        """
        for page in self._pages(shelf):
            if letters := [record for record in page if not is_mark(record)]:
                yield letters

    def _pages(self, shelf: Shelf) -> Iterator[list[Record]]:
        """Page by page. One is empty where a turn has brought nothing, so that whoever reads can stop."""
        if shelf.begin >= shelf.end:
            return
        self._consumer.assign([KafkaPartition(shelf.topic, shelf.number, shelf.begin)])
        heard = time.monotonic()
        try:
            while True:
                page, ended = [], False
                first = self._consumer.poll(_TURN)
                for message in [first, *self._consumer.consume(_PAGE, 0)] if first is not None else []:
                    error = message.error()
                    if error is None:
                        record = as_record(message)
                        ended = ended or record.offset >= shelf.end - 1
                        if record.offset < shelf.end:
                            page.append(record)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        ended = True
                    elif about_topic(error):
                        with _errors(f"topic {shelf.topic!r}"):
                            raise KafkaException(error)
                    else:
                        # Of the group, or what passes by itself. If it does not, the silence is told.
                        self._on_error(error)
                yield page
                if page:
                    # The caller had its time.
                    heard = time.monotonic()
                if ended:
                    return
                if time.monotonic() - heard > _ANSWER:
                    told = self._last_error or "nothing was heard"
                    raise Unavailable(f"topic {shelf.topic!r}, partition {shelf.number}: no answer: {told}")
        finally:
            with contextlib.suppress(KafkaException, RuntimeError):
                self._consumer.unassign()

    def _committed(self, numbers: Collection[int]) -> Mapping[int, int]:
        """How far the group says that all is dealt with. It only saves reading: the marks tell the rest."""
        try:
            places = [KafkaPartition(self.topic, number) for number in numbers]
            found = self._consumer.committed(places, timeout=_GROUP)
        except KafkaException as error:
            told = "group %r cannot be asked (%s): %s is read from its beginning, and nothing is committed"
            _LOG.warning(told, self.group, named(error.args[0]), self.topic)
            self._commits = False
            return {}
        return {place.partition: place.offset for place in found if place.error is None and place.offset >= 0}

    def commit(self, shelf: Shelf, offset: int) -> None:
        """Says, for whoever watches the group's lag, that everything before the offset is dealt with."""
        if not self._commits:
            return
        try:
            self._consumer.commit(offsets=[KafkaPartition(shelf.topic, shelf.number, offset)], asynchronous=False)
        except KafkaException as error:
            _LOG.warning("group %r: its offset could not be committed: %s", self.group, named(error.args[0]))

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = named(error)


@contextlib.contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        if reason.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise SettingsError(
                f"{what}: may not be read ({named(reason)}). Takes a user with the right READ"
            ) from error
        raise Unavailable(f"{what}: {named(reason)}") from error
