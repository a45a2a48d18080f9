"""Flags that several verbs of `quiesce consumer` have, and how letters are shown."""

import argparse
import base64
from typing import TYPE_CHECKING, Any

from quiesce.cli.flags import add_flag, add_repeated_flag, add_switch
from quiesce.cli.kafka_flags import add_kafka
from quiesce.cli.outbox_flags import refuse_backwards, time
from quiesce.errors import SettingsError
from quiesce.inbox.record import Record
from quiesce.inbox.retry_headers import (
    CONSUMER,
    CUT,
    ERROR,
    MESSAGE,
    ORIGIN_TIME,
    PREFIX,
    REASON,
    origin,
    redrives,
    tries,
)

if TYPE_CHECKING:
    from quiesce.kafka.dead_selection import Selection


def add_topic(parser: argparse.ArgumentParser) -> None:
    """The brokers and the dead-letter topic."""
    add_kafka(parser)
    add_flag(parser, "--topic", default=None, help="the dead-letter topic, such as orders.dead")


def add_group(parser: argparse.ArgumentParser) -> None:
    add_flag(
        parser,
        "--group",
        default=None,
        help="in whose name it is committed how far the letters are dealt with: <topic>.redrive else",
    )


def add_place(parser: argparse.ArgumentParser) -> None:
    add_repeated_flag(parser, "--partition", convert=number, metavar="N", help="of these partitions of the topic")
    add_repeated_flag(
        parser, "--offset", convert=number, metavar="N", help="at these offsets; takes one --partition beside it"
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Which letters: those that match all that is given."""
    add_place(parser)
    add_repeated_flag(parser, "--key", help="of these keys")
    add_repeated_flag(parser, "--event", metavar="ID", help="these events, by id")
    add_repeated_flag(parser, "--origin", metavar="TOPIC", help="first read from these topics")
    add_repeated_flag(parser, "--reason", metavar="CODE", help="with these reasons, such as failed or undecodable")
    add_repeated_flag(parser, "--consumer", metavar="NAME", help="given up by these consumers")
    add_flag(parser, "--since", default=None, convert=time, metavar="TIME", help="set aside at this time or later")
    add_flag(
        parser,
        "--until",
        default=None,
        convert=time,
        metavar="TIME",
        help="set aside before this time. Times are ISO 8601; UTC where they name no zone",
    )


def add_payloads(parser: argparse.ArgumentParser) -> None:
    add_switch(parser, "--payloads", help="show keys, values and headers, which are hidden else")


def topic(arguments: argparse.Namespace) -> str:
    given: str | None = arguments.topic
    if not given:
        raise SettingsError("--topic: not set, takes the dead-letter topic, such as orders.dead; or set QUIESCE_TOPIC")
    return given


def selection(arguments: argparse.Namespace) -> "Selection":
    from quiesce.kafka.dead_selection import Selection

    if arguments.offset and len(arguments.partition) != 1:
        raise SettingsError("--offset: takes one --partition beside it: each partition counts its own offsets")
    refuse_backwards(arguments.since, arguments.until)
    return Selection(
        partitions=arguments.partition,
        offsets=arguments.offset,
        keys=arguments.key,
        events=arguments.event,
        origins=arguments.origin,
        reasons=arguments.reason,
        consumers=arguments.consumer,
        since=arguments.since,
        until=arguments.until,
    )


def number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes a number from 0")
    return int(text)


def as_dict(letter: Record, *, waiting: bool, payloads: bool) -> dict[str, Any]:
    """A letter for JSON. A key, value or header that is not text stands there as `..._base64`.

    `payloads`: with key, value and headers.
    """
    place = origin(letter)
    written = letter.header(ORIGIN_TIME)
    shown: dict[str, Any] = {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "waiting": waiting,
        "set_aside_at": instant(letter.timestamp),
        "event_id": letter.event_id,
        "type": letter.header("type"),
        "reason": letter.header(REASON),
        "error": letter.header(ERROR),
        "message": letter.header(MESSAGE),
        "tries": tries(letter),
        "consumer": letter.header(CONSUMER),
        "redrives": redrives(letter),
        "cut": letter.header(CUT),
        "origin": {"topic": place.topic, "partition": place.partition, "offset": place.offset},
        "origin_at": instant(int(written) / 1000) if written and written.isdigit() else None,
        "bytes": None if letter.value is None else len(letter.value),
        "key_digest": _digest(letter),
    }
    if payloads:
        shown |= _plain("key", letter.key) | _plain("value", letter.value)
        shown["headers"] = [
            {"name": name} | _plain("value", value) for name, value in letter.headers if not name.startswith(PREFIX)
        ]
    return shown


def value_of(letter: Record, *, payloads: bool) -> str:
    """For a table."""
    if letter.value is None:
        return "tombstone" if letter.header(CUT) is None else f"cut: {letter.header(CUT)}"
    if not payloads:
        return f"*** ({len(letter.value):,} bytes)"
    text = _text(letter.value)
    return f"({len(letter.value):,} bytes, not text)" if text is None else text


def key_of(letter: Record, *, payloads: bool) -> str:
    """For a table: a key may be personal data, so its digest tells one from another, as in the consumers' logs."""
    if letter.key is None:
        return "(none)"
    if not payloads:
        return f"#{_digest(letter)}"
    text = _text(letter.key)
    return f"0x{letter.key[:20].hex()}" if text is None else text


def instant(at: float) -> str | None:
    """Seconds since the epoch as text; None where the record has no time."""
    from datetime import UTC, datetime

    return None if not 0 < at < 1e11 else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _digest(letter: Record) -> str | None:
    from quiesce.workers.failures import key_digest

    return None if letter.key is None else key_digest(letter)


def _plain(name: str, data: bytes | None) -> dict[str, str | None]:
    text = _text(data)
    if text is None and data is not None:
        return {name: None, f"{name}_base64": base64.b64encode(data).decode()}
    return {name: text}


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None
