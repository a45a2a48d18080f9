"""What librdkafka is given: our defaults, the user's settings, and a refusal of what would break a promise."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException

from quiesce.errors import SettingsError
from quiesce.kafka.client_log import Tamed

CLIENT_LOGGER = logging.getLogger("quiesce.kafka.librdkafka")
"""librdkafka writes here; left to itself it writes to stderr."""
CLIENT_LOGGER.addFilter(Tamed())

Settings = dict[str, Any]
"""librdkafka takes text, numbers and callables, each setting its own."""

DEFAULT_BATCH_SIZE = 1_000_000
"""librdkafka's own default: below the limit of a topic that nobody configured (1,048,588)."""

COMMON: Settings = {
    # An outage is over when a broker answers, not up to ten seconds later.
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
    "socket.keepalive.enable": True,
    "logger": CLIENT_LOGGER,
}

_PRODUCER: Settings = {
    "acks": "all",
    "enable.idempotence": True,
    # Otherwise what was in flight behind a refused batch is sent again, and so goes before its retry. This way the
    # producer sends nothing more, and the relay begins anew from the outbox.
    "enable.gapless.guarantee": True,
    # 0 is for ever. A message that librdkafka gives up by itself is overtaken by the next of its key.
    "message.timeout.ms": 0,
    # As the Java client does, so that other producers of a topic choose the same partition for a key.
    "partitioner": "murmur2_random",
    "linger.ms": 1,
    "batch.size": DEFAULT_BATCH_SIZE,
    # The topic's limit shall decide what is too large, and not a third one in the client.
    "message.max.bytes": 10_000_000,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 65_536,
}

_SECRETS = ("password", "secret", "token", "jaas", "key.pem", "oauthbearer.config")


@dataclass(frozen=True, slots=True)
class Promise:
    """A setting that may be given only with a value that keeps the promise."""

    keeps: Callable[[str], bool]
    takes: str
    why: str


def _is(*values: str) -> Callable[[str], bool]:
    return lambda got: got.strip().lower() in values


def _never(_: str) -> bool:
    return False


_ON = _is("true", "t", "1")
is_off = _is("false", "f", "0")
_OURS = Promise(_never, "nothing here", "this callback is taken")
_LATER = Promise(_never, "nothing here", "topic settings stand at the top level, where they are checked")

_ALL = Promise(_is("all", "-1"), "all", "an ack of fewer brokers is lost with them")
_FOR_EVER = Promise(_is("0", "0.0"), "0", "a message given up alone is overtaken by later ones of its key")
_UNLIMITED = Promise(_is("2147483647"), "2147483647", "a message given up alone is overtaken by later ones of its key")
_PRODUCER_PROMISES: Mapping[str, Promise] = {
    "acks": _ALL,
    "request.required.acks": _ALL,
    "enable.idempotence": Promise(_ON, "true", "a retry in the client would double and reorder"),
    "enable.gapless.guarantee": Promise(_ON, "true", "later events would go before a refused one of their key"),
    "message.timeout.ms": _FOR_EVER,
    "delivery.timeout.ms": _FOR_EVER,
    "retries": _UNLIMITED,
    "message.send.max.retries": _UNLIMITED,
    "partitioner": Promise(
        _is("murmur2_random", "murmur2"), "murmur2_random", "another one moves keys to other partitions"
    ),
    "partitioner_cb": _OURS,
    "queuing.strategy": Promise(_is("fifo"), "fifo", "the last in would be the first out"),
    "delivery.report.only.error": Promise(is_off, "false", "a delivery report is the only proof of an ack"),
    "transactional.id": Promise(_never, "nothing here", "the relay has no Kafka transactions"),
    "default.topic.config": _LATER,
    "dr_cb": _OURS,
    "dr_msg_cb": _OURS,
    "on_delivery": _OURS,
    "error_cb": _OURS,
    "logger": _OURS,
}


def shown(name: str, value: object) -> str:
    """A setting's value for people; a secret is hidden."""
    return "***" if any(word in name for word in _SECRETS) else repr(value)


def given_settings(bootstrap_or_config: str | Mapping[str, object], more: Mapping[str, object]) -> Settings:
    """The user's settings as one dict. A string is the bootstrap address; `more` wins over the mapping.

    Raises:
        SettingsError: no bootstrap address among them.
    """
    if isinstance(bootstrap_or_config, str):
        given: Settings = {"bootstrap.servers": bootstrap_or_config}
    else:
        given = dict(bootstrap_or_config)
    given.update(more)
    address = given.get("bootstrap.servers", given.get("metadata.broker.list"))
    # A client with librdkafka's built-in mock brokers brings its own address.
    if not given.get("test.mock.num.brokers") and (not isinstance(address, str) or not address.strip()):
        raise SettingsError(
            f"setting 'bootstrap.servers' of the Kafka client: got {address!r}, takes host:port[,host:port...]"
        )
    return given


def producer_settings(given: Mapping[str, object]) -> Settings:
    """Raises SettingsError for a setting that would break order, acks or delivery reports."""
    refuse_broken_promises("producer", given, _PRODUCER_PROMISES)
    return COMMON | _PRODUCER | _by_first_name(given)


def whole_number(settings: Mapping[str, object], name: str, default: int) -> int:
    """A setting that we reckon with ourselves. Raises SettingsError if it is not a number."""
    value = settings.get(name, default)
    try:
        return int(str(value))
    except ValueError as error:
        raise SettingsError(f"setting {name!r} of the Kafka client: got {value!r}, takes a number") from error


def refused_settings(what: str, error: Exception) -> SettingsError:
    """What librdkafka, or confluent-kafka, says of settings that we passed through."""
    reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    return SettingsError(f"the Kafka {what}'s settings: {reason}")


def admin_settings(given: Mapping[str, object]) -> Settings:
    """For a short-lived client that asks about topics: connection and credentials only matter."""
    return COMMON | dict(given)


def _by_first_name(given: Mapping[str, object]) -> Settings:
    """The settings without the aliases of our own defaults: librdkafka takes whichever comes last."""
    aliases = {"request.required.acks", "delivery.timeout.ms"}
    return {name: value for name, value in given.items() if name not in aliases}


def refuse_broken_promises(what: str, given: Mapping[str, object], promises: Mapping[str, Promise]) -> None:
    for name, value in given.items():
        promise = promises.get(name)
        if promise is not None and not promise.keeps(str(value)):
            raise SettingsError(
                f"setting {name!r} of the Kafka {what}: got {shown(name, value)}, takes {promise.takes} ({promise.why})"
            )
