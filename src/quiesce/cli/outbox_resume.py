"""`quiesce outbox resume`: relays go on."""

import argparse
from typing import Any

from quiesce.cli.outbox_flags import add_changing, add_dsn, add_json, dsn, run, said_by
from quiesce.cli.outbox_table import instant, print_json
from quiesce.lifecycle.report import ExitCode


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "resume", help="end a pause", description="Ends a pause: relays go on within a second or so."
    )
    add_dsn(parser)
    add_changing(parser)
    add_json(parser)
    parser.set_defaults(run=run_resume)


def run_resume(arguments: argparse.Namespace) -> int:
    return run(_resume(arguments))


async def _resume(arguments: argparse.Namespace) -> int:
    from quiesce.postgres.operating import operating
    from quiesce.postgres.pausing import resume

    async with operating(dsn(arguments)) as connection:
        before = await resume(connection, said_by=said_by(arguments), dry_run=arguments.dry_run)
    if arguments.json:
        print_json({"changed": before is not None, "dry_run": arguments.dry_run})
    elif before is None:
        print("was not paused")
    else:
        said = "would resume" if arguments.dry_run else "resumed"
        print(f"{said}: was paused by {before.by} since {instant(before.at)}")
    return ExitCode.CLEAN
