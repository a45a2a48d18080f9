"""`quiesce inbox prune`: old marks are deleted, if no record that they are about can come again."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from quiesce.cli.flags import add_flag, add_repeated_flag, add_switch
from quiesce.cli.kafka_flags import add_kafka, kafka_config
from quiesce.cli.outbox_flags import add_dsn, add_json, age, dsn, run
from quiesce.cli.outbox_table import print_json
from quiesce.errors import SettingsError
from quiesce.lifecycle.report import ExitCode

if TYPE_CHECKING:
    from quiesce.inbox.retention import TopicsKeep


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "prune",
        help="delete old marks",
        description="Deletes marks that are older than an age, in small pieces. It asks the brokers how long the "
        "topics keep their records, and refuses an age below that: a record that is read again after its mark has gone "
        "is handled twice. A service does the same by itself with prune_inbox.",
        epilog="Exit status: 0 done, or the time was over, which is told; 78 refused.",
    )
    add_dsn(parser)
    add_flag(parser, "--older-than", default=None, convert=age, metavar="AGE", help="the age, such as 36h or 14d")
    add_kafka(parser, "where to ask how long the topics keep their records")
    add_repeated_flag(
        parser, "--topic", help="a topic that the consumers of this inbox read, retry and dead-letter topics too"
    )
    add_switch(parser, "--unchecked", help="ask no broker: nobody will read so far back")
    add_flag(parser, "--within", default="5m", convert=_within, metavar="AGE", help="stop after this time")
    add_switch(parser, "--dry-run", help="say how many would go, and do nothing")
    add_json(parser)
    parser.set_defaults(run=run_prune)


def run_prune(arguments: argparse.Namespace) -> int:
    if arguments.older_than is None:
        raise SettingsError("--older-than: not set, takes an age such as 36h or 14d")
    asks = arguments.kafka is not None or arguments.topic or arguments.kafka_config is not None
    if arguments.unchecked and asks:
        raise SettingsError("--unchecked: asks no broker, so it takes neither --kafka nor --kafka-config nor --topic")
    if not arguments.unchecked and (arguments.kafka is None or not arguments.topic):
        raise SettingsError(
            "--kafka and --topic: not both set; they say whom to ask how long records are kept. Or say --unchecked"
        )
    return run(_prune(arguments))


async def _prune(arguments: argparse.Namespace) -> int:
    from quiesce.inbox.retention import answered, checked_age, short_of
    from quiesce.inbox.schema_steps import INBOX
    from quiesce.postgres.inbox_retention import prunable, prune_inbox
    from quiesce.postgres.operating import operating

    older_than: float = arguments.older_than
    async with operating(dsn(arguments), tables=INBOX) as connection:
        kept = await answered(_topics_keep(arguments))
        checked_age(older_than, kept)
        if (warning := short_of(older_than, kept)) is not None:
            print(f"quiesce: {warning}", file=sys.stderr)
        if arguments.dry_run:
            entries, finished = await prunable(connection, older_than)
        else:
            pruned = await prune_inbox(connection, older_than, "unchecked", bound=_seconds(arguments.within))
            entries, finished = pruned.entries, pruned.finished
    if arguments.json:
        print_json({"pruned": entries, "finished": finished, "dry_run": arguments.dry_run})
        return ExitCode.CLEAN
    if arguments.dry_run:
        print(f"would delete {entries:,} marks{'' if finished else ' or more'}")
    else:
        rest = "" if finished else "; more are left, or somebody else prunes: run it again"
        print(f"deleted: {entries:,} marks{rest}")
    return ExitCode.CLEAN


def _topics_keep(arguments: argparse.Namespace) -> "TopicsKeep":
    if arguments.unchecked:
        return "unchecked"
    from quiesce.kafka.topic_retention import TopicRetention

    config = {**kafka_config(arguments.kafka_config), "bootstrap.servers": arguments.kafka}
    return TopicRetention(config, *arguments.topic)


def _within(text: str) -> float:
    seconds = age(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, takes a time such as 30s or 5m, more than 0")
    return seconds


def _seconds(given: float | str) -> float:
    # The default stands in the help as it is typed.
    return _within(given) if isinstance(given, str) else given
