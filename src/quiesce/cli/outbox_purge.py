"""`quiesce outbox purge`: dead letters are deleted for good."""

import argparse
from typing import Any

from quiesce.cli.flags import add_flag
from quiesce.cli.outbox_flags import add_changing, add_dsn, add_json, add_selection, age, dsn, run, said_by, selection
from quiesce.cli.outbox_table import print_json
from quiesce.errors import SettingsError
from quiesce.lifecycle.report import ExitCode


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "purge",
        help="delete old dead letters for good",
        description="Deletes dead letters that were set aside longer ago than an age, and their events with them: they "
        "are never published then. Fewer where more is given. What was held behind one of them is sent.",
    )
    add_dsn(parser)
    add_flag(parser, "--older-than", default=None, convert=age, metavar="AGE", help="the age, such as 12h or 30d")
    add_selection(parser)
    add_changing(parser)
    add_json(parser)
    parser.set_defaults(run=run_purge)


def run_purge(arguments: argparse.Namespace) -> int:
    if arguments.older_than is None:
        raise SettingsError("--older-than: not set, takes an age such as 12h or 30d; 0 means all")
    return run(_purge(arguments))


async def _purge(arguments: argparse.Namespace) -> int:
    from quiesce.postgres.dead_letters import purge
    from quiesce.postgres.operating import operating

    chosen = selection(arguments, arguments.older_than)
    async with operating(dsn(arguments)) as connection:
        total = await purge(connection, chosen, said_by=said_by(arguments), dry_run=arguments.dry_run)
    if arguments.json:
        print_json({"purged": total, "dry_run": arguments.dry_run})
    else:
        print(f"{'would delete' if arguments.dry_run else 'deleted:'} {total:,} dead letters")
    return ExitCode.CLEAN
