"""Flags that several verbs of `quiesce outbox` have, and what they take."""

import argparse
import asyncio
import re
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from quiesce.cli.flags import add_flag, add_repeated_flag, add_switch
from quiesce.errors import SettingsError

if TYPE_CHECKING:
    from quiesce.postgres.dead_letters import Selection

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


def add_dsn(parser: argparse.ArgumentParser) -> None:
    add_flag(parser, "--dsn", default=None, help="the database, such as postgresql://user@host/database")


def add_json(parser: argparse.ArgumentParser) -> None:
    add_switch(parser, "--json", help="print one JSON object instead")


def add_changing(parser: argparse.ArgumentParser) -> None:
    """For verbs that change something."""
    add_flag(parser, "--by", default=None, metavar="NAME", help="who does it, for the audit; by default the OS user")
    add_switch(parser, "--dry-run", help="say what would be done, and do nothing")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Which dead letters: those that match all that is given."""
    add_repeated_flag(parser, "--event", convert=_event, metavar="ID", help="these events, by id")
    add_repeated_flag(parser, "--key", help="of these keys")
    add_repeated_flag(parser, "--topic", help="of these topics")
    add_flag(parser, "--since", default=None, convert=time, metavar="TIME", help="set aside at this time or later")
    add_flag(
        parser,
        "--until",
        default=None,
        convert=time,
        metavar="TIME",
        help="set aside before this time. Times are ISO 8601; UTC where they name no zone",
    )


def add_limit(parser: argparse.ArgumentParser) -> None:
    add_flag(parser, "--limit", default=20, convert=limit, metavar="N", help="how many events to show, at most")
    add_switch(parser, "--payloads", help="show payloads and headers, which are hidden else")


def selection(arguments: argparse.Namespace, older_than: float | None = None) -> "Selection":
    from quiesce.postgres.dead_letters import Selection

    refuse_backwards(arguments.since, arguments.until)
    return Selection(
        events=arguments.event,
        keys=arguments.key,
        topics=arguments.topic,
        since=arguments.since,
        until=arguments.until,
        older_than=older_than,
    )


def refuse_backwards(since: datetime | None, until: datetime | None) -> None:
    """Raises SettingsError where no time lies between both: nothing would be found, and a slip go unnoticed."""
    if since is not None and until is not None and until <= since:
        raise SettingsError(f"--until: got {until.isoformat()}, takes a time after --since {since.isoformat()}")


def dsn(arguments: argparse.Namespace) -> str:
    """The DSN. Raises SettingsError where there is none."""
    given: str | None = arguments.dsn
    if not given:
        raise SettingsError("--dsn: not set, takes a PostgreSQL URL; or set QUIESCE_DSN")
    return given


def said_by(arguments: argparse.Namespace) -> str:
    from quiesce.postgres.operating import operator

    name: str = arguments.by or operator()
    return name


def run(work: Coroutine[Any, Any, int]) -> int:
    """Runs it; Ctrl-C ends it with status 130. What was committed stays."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        return 130


def age(text: str) -> float:
    """Seconds, from text such as `90s`, `30m`, `12h` or `7d`; `0`, but no other number without a unit."""
    given = _AGE.fullmatch(text.strip())
    # Who forgets the `d` of `30d` would delete what is half a minute old.
    if given is None or (not given[2] and float(given[1])):
        raise argparse.ArgumentTypeError(f"got {text!r}, takes an age such as 90s, 30m, 12h or 7d")
    return float(given[1]) * _UNITS[given[2]]


def rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes events a second, more than 0")
    return value


def lane(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 16:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes a lane from 0 to 15")
    return int(text)


def limit(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes a number from 1 to 100000")
    return int(text)


def _event(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes an event id, which is a UUID") from None


def time(text: str) -> datetime:
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes a time such as 2026-01-31T12:00:00Z") from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)
