"""`quiesce outbox pause`: relays claim nothing more."""

import argparse
from typing import Any

from quiesce.cli.flags import add_flag
from quiesce.cli.outbox_flags import add_changing, add_dsn, add_json, dsn, run, said_by
from quiesce.cli.outbox_table import instant, print_json
from quiesce.lifecycle.report import ExitCode


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "pause",
        help="have relays claim nothing more",
        description="Has all relays of this outbox claim nothing more, within a second or so. What they have in hand "
        "is finished, and writers write on. Until: quiesce outbox resume.",
    )
    add_dsn(parser)
    add_flag(parser, "--why", default="", help="the reason, for those who wonder")
    add_changing(parser)
    add_json(parser)
    parser.set_defaults(run=run_pause)


def run_pause(arguments: argparse.Namespace) -> int:
    return run(_pause(arguments))


async def _pause(arguments: argparse.Namespace) -> int:
    from quiesce.postgres.operating import operating
    from quiesce.postgres.pausing import pause, paused

    async with operating(dsn(arguments)) as connection:
        changed = await pause(connection, said_by=said_by(arguments), why=arguments.why, dry_run=arguments.dry_run)
        held = await paused(connection)
    if arguments.json:
        print_json({"changed": changed, "paused": held is not None, "dry_run": arguments.dry_run})
    elif not changed and held is not None:
        print(f"paused already, since {instant(held.at)} by {held.by}")
    else:
        print("would pause" if arguments.dry_run else "paused")
    return ExitCode.CLEAN
