"""`quiesce consumer dead`: the dead letters of a consumer."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from quiesce.cli.consumer_flags import (
    add_group,
    add_payloads,
    add_place,
    add_selection,
    add_topic,
    as_dict,
    instant,
    key_of,
    selection,
    topic,
    value_of,
)
from quiesce.cli.flags import add_flag, add_switch
from quiesce.cli.kafka_flags import kafka_settings
from quiesce.cli.outbox_flags import add_json, limit
from quiesce.cli.outbox_table import print_json, print_table, shortened
from quiesce.errors import SettingsError
from quiesce.inbox.record import Record
from quiesce.inbox.retry_headers import CONSUMER, ERROR, MESSAGE, REASON, origin, tries
from quiesce.lifecycle.report import ExitCode

_TITLES = (
    *("partition", "offset", "set aside at", "key", "event", "reason", "tries", "consumer", "origin", "value"),
    "message",
)

if TYPE_CHECKING:
    from quiesce.kafka.dead_reader import DeadReader, Shelf


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "dead",
        help="the dead letters",
        description="Shows the records that consumers gave up, with the reason and where each was first read. It joins "
        "no group and changes nothing.",
    )
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = verbs.add_parser(
        "list",
        help="which wait, and why",
        description="Lists the letters that wait, those that match all that is given, in the order in which they were "
        "set aside in each partition. Letters that were redriven or dismissed are left out unless --all asks for them.",
    )
    add_topic(listing)
    add_selection(listing)
    add_switch(listing, "--all", help="also those that were dealt with, as long as the topic keeps them")
    add_flag(listing, "--limit", default=20, convert=limit, metavar="N", help="how many letters to show, at most")
    add_payloads(listing)
    add_group(listing)
    add_json(listing)
    listing.set_defaults(run=run_list)
    showing = verbs.add_parser(
        "show",
        help="all about one",
        description="Shows one letter, at --partition and --offset as `list` names them.",
    )
    add_topic(showing)
    add_place(showing)
    add_payloads(showing)
    add_group(showing)
    add_json(showing)
    showing.set_defaults(run=run_show)


def run_list(arguments: argparse.Namespace) -> int:
    from quiesce.kafka.dead_reader import DeadReader

    chosen, payloads = selection(arguments), arguments.payloads
    total = 0
    letters: list[tuple[Record, bool]] = []
    with DeadReader(kafka_settings(arguments), topic(arguments), group=arguments.group) as reader:
        for letter, waiting in _letters(reader, reader.shelves(all_of_it=arguments.all)):
            if (waiting or arguments.all) and chosen.matches(letter):
                total += 1
                if len(letters) < arguments.limit:
                    letters.append((letter, waiting))
    if arguments.json:
        shown = [as_dict(letter, waiting=waiting, payloads=payloads) for letter, waiting in letters]
        print_json({"topic": arguments.topic, "total": total, "letters": shown})
        return ExitCode.CLEAN
    if not total:
        print("no dead letters" if arguments.all else "no dead letters wait")
        return ExitCode.CLEAN
    print_table(
        (
            "partition",
            "offset",
            "set aside at",
            "key",
            "event",
            "reason",
            "tries",
            "consumer",
            "origin",
            "value",
            "message",
        ),
        (
            (
                letter.partition,
                letter.offset,
                instant(letter.timestamp),
                shortened(key_of(letter, payloads=payloads)),
                letter.event_id,
                letter.header(REASON),
                tries(letter),
                letter.header(CONSUMER),
                origin(letter),
                shortened(value_of(letter, payloads=payloads)),
                shortened(_said(letter)) if waiting else f"(dealt with) {shortened(_said(letter))}",
            )
            for letter, waiting in letters
        ),
    )
    if total > len(letters):
        print(f"{total - len(letters):,} more")
    return ExitCode.CLEAN


def run_show(arguments: argparse.Namespace) -> int:
    from quiesce.kafka.dead_reader import DeadReader

    if len(arguments.partition) != 1 or len(arguments.offset) != 1:
        raise SettingsError("dead show: takes one --partition and one --offset")
    (partition,), (offset,) = arguments.partition, arguments.offset
    with DeadReader(kafka_settings(arguments), topic(arguments), group=arguments.group) as reader:
        shelves = [shelf for shelf in reader.shelves(all_of_it=True) if shelf.number == partition]
        found = [one for one in _letters(reader, shelves) if one[0].offset == offset]
    if not found:
        raise SettingsError(
            f"no letter at partition {partition}, offset {offset}: it is gone, or never was. See dead list"
        )
    shown = as_dict(found[0][0], waiting=found[0][1], payloads=arguments.payloads)
    if arguments.json:
        print_json(shown)
        return ExitCode.CLEAN
    if not arguments.payloads:
        shown["value"] = value_of(found[0][0], payloads=False)
    print_table(("what", "it is"), ((name, _one_line(value)) for name, value in shown.items()))
    return ExitCode.CLEAN


def _letters(reader: "DeadReader", shelves: "list[Shelf]") -> Iterator[tuple[Record, bool]]:
    """Each letter, and whether it waits."""
    for shelf in shelves:
        for page in reader.letters(shelf):
            for letter in page:
                yield letter, letter.offset >= shelf.waiting_from and letter.offset not in shelf.dealt_with


def _said(letter: Record) -> str:
    return ": ".join(filter(None, (letter.header(ERROR), letter.header(MESSAGE))))


def _one_line(value: object) -> str:
    match value:
        case dict():
            return f"{value['topic']}[{value['partition']}]@{value['offset']}"
        case list():
            return ", ".join(f"{one['name']}={one['value'] or one.get('value_base64') or ''}" for one in value)
        case None:
            return ""
    return str(value)
