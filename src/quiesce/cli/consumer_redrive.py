"""`quiesce consumer redrive`: dead letters go back to where they came from, or are dismissed."""

import argparse
import asyncio
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from quiesce.cli.consumer_flags import add_group, add_selection, add_topic, number, selection, topic
from quiesce.cli.flags import add_flag, add_switch
from quiesce.cli.kafka_flags import kafka_settings
from quiesce.cli.outbox_flags import add_changing, add_json, rate, run, said_by
from quiesce.cli.outbox_table import print_json
from quiesce.errors import SettingsError
from quiesce.lifecycle.report import ExitCode

if TYPE_CHECKING:
    from quiesce.kafka.redrive import Progress

_TELL = 1.0
"""Seconds between two lines about the progress."""
_SHOWN = 20
"""Refused letters that are named."""


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "redrive",
        help="send dead letters back, or dismiss them",
        description="Sends dead letters back to the topic and partition in which they were first read, with the same "
        "key, value, event id and headers. Name which: those that match all that is given. A consumer with an inbox "
        "handles each once, however often it is sent back. Each goes behind what came after it. Every group that reads "
        "the topic sees it again; --to sends it to the retry topic of one group instead.",
        epilog="What was sent back is marked in the dead-letter topic, and is not sent back again. Look first with "
        "--dry-run, and with quiesce consumer dead list, which takes the same flags. Ctrl-C, or SIGTERM, ends it "
        "behind the piece in hand, of at most 100 letters; while it first reads which letters wait, at once. The "
        "second one ends it at once in any case. Exit status: 0 done; 1 failed, or some letters could not be sent "
        "back; 130 Ctrl-C, or SIGTERM.",
    )
    add_topic(parser)
    add_selection(parser)
    add_switch(parser, "--all", help="all letters that wait")
    add_flag(parser, "--to", default=None, metavar="TOPIC", help="send them there, by their key")
    add_switch(parser, "--dismiss", help="send nothing, and mark them as dealt with")
    add_flag(
        parser,
        "--rate",
        default=None,
        convert=rate,
        metavar="N",
        help="letters a second; as fast as it goes by default",
    )
    add_flag(parser, "--limit", default=None, convert=number, metavar="N", help="how many letters, at most")
    add_group(parser)
    add_changing(parser)
    add_json(parser)
    parser.set_defaults(run=run_redrive)


def run_redrive(arguments: argparse.Namespace) -> int:
    return run(_redrive(arguments))


async def _redrive(arguments: argparse.Namespace) -> int:
    from quiesce.kafka.redrive import Plan, Progress, redrive

    chosen = selection(arguments)
    if chosen.everything != arguments.all:
        raise SettingsError(
            "redrive: takes --partition, --offset, --key, --event, --origin, --reason, --consumer, --since or --until; "
            "or --all, alone"
        )
    plan = Plan(
        to=arguments.to,
        dismiss=arguments.dismiss,
        dry_run=arguments.dry_run,
        rate=arguments.rate,
        limit=arguments.limit,
        said_by=said_by(arguments),
    )
    progress, stopped = Progress(), _Interrupt()
    told = time.monotonic()
    settings, name = kafka_settings(arguments), topic(arguments)
    try:
        with stopped:
            pieces = redrive(settings, name, chosen, plan, group=arguments.group, stopped=stopped)
            async for progress in pieces:
                if not arguments.json and time.monotonic() - told > _TELL:
                    told = time.monotonic()
                    print(f"{progress.done:,} so far", file=sys.stderr, flush=True)
    except BaseException:
        if progress.done or progress.refused:
            # What went is marked, whatever ended it.
            _tell(arguments, progress)
        raise
    _tell(arguments, progress)
    if stopped():
        return 130
    return ExitCode.FAILED if progress.refused else ExitCode.CLEAN


class _Interrupt:
    """The first Ctrl-C, or SIGTERM, ends it behind the piece in hand; the second one at once."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        return self._asked

    def __enter__(self) -> None:
        for which in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(which, self._ask)

    def __exit__(self, *_: object) -> None:
        for which in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(which)

    def _ask(self) -> None:
        self._asked = True
        self.__exit__()


def _tell(arguments: argparse.Namespace, progress: "Progress") -> None:
    if arguments.json:
        print_json(
            {
                "redriven": 0 if arguments.dismiss else progress.done,
                "dismissed": progress.done if arguments.dismiss else 0,
                "left": progress.left,
                "read_to_end": progress.read_to_end,
                "refused": [
                    {"partition": letter.partition, "offset": letter.offset, "why": why}
                    for letter, why in progress.refused
                ],
                "dry_run": arguments.dry_run,
            }
        )
        return
    verb = ("would dismiss", "dismissed:") if arguments.dismiss else ("would redrive", "redriven:")
    print(f"{verb[0] if arguments.dry_run else verb[1]} {progress.done:,} letters; {_waiting(progress)}", flush=True)
    for letter, why in progress.refused[:_SHOWN]:
        print(f"not sent back: partition {letter.partition}, offset {letter.offset}: {why}", file=sys.stderr)
    if len(progress.refused) > _SHOWN:
        print(f"{len(progress.refused) - _SHOWN:,} more were not sent back", file=sys.stderr)


def _waiting(progress: "Progress") -> str:
    known = progress.left + len(progress.refused)
    if progress.read_to_end:
        return f"{known:,} wait"
    # It ended before it had looked at all of them.
    return f"at least {known:,} wait" if known else "how many wait is not known"
