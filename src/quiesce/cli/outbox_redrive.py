"""`quiesce outbox redrive`: dead events are sent again."""

import argparse
import asyncio
from typing import Any

from quiesce.cli.flags import add_flag, add_switch
from quiesce.cli.outbox_flags import add_changing, add_dsn, add_json, add_selection, dsn, rate, run, said_by, selection
from quiesce.cli.outbox_table import print_json
from quiesce.errors import SettingsError
from quiesce.lifecycle.report import ExitCode


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "redrive",
        help="send dead events again",
        description="Makes dead letters retries that are due now, in small transactions. Name which: those that match "
        "all that is given. What came behind a dead event of its key was published before, unless its policy is "
        "hold_key. Ctrl-C stops between two transactions; the audit says how far it came.",
    )
    add_dsn(parser)
    add_selection(parser)
    add_switch(parser, "--all", help="all dead letters")
    add_flag(parser, "--rate", default=None, convert=rate, metavar="N", help="events a second; as fast as it goes else")
    add_changing(parser)
    add_json(parser)
    parser.set_defaults(run=run_redrive)


def run_redrive(arguments: argparse.Namespace) -> int:
    return run(_redrive(arguments))


async def _redrive(arguments: argparse.Namespace) -> int:
    from quiesce.postgres.dead_letters import count
    from quiesce.postgres.operating import operating
    from quiesce.postgres.redrive import redrive

    chosen = selection(arguments)
    if chosen.everything != arguments.all:
        raise SettingsError("redrive: takes --event, --key, --topic, --since or --until; or --all, alone")
    total = 0
    async with operating(dsn(arguments)) as connection:
        if arguments.dry_run:
            total = await count(connection, chosen)
        else:
            pieces = redrive(connection, chosen, said_by=said_by(arguments), rate=arguments.rate)
            try:
                async for done in pieces:
                    total += done
            except BaseException as error:
                # Cut short, by Ctrl-C or a fault: what was done is done.
                if total or isinstance(error, asyncio.CancelledError):
                    _tell(arguments, total)
                raise
    _tell(arguments, total)
    return ExitCode.CLEAN


def _tell(arguments: argparse.Namespace, total: int) -> None:
    if arguments.json:
        print_json({"redriven": total, "dry_run": arguments.dry_run})
    else:
        print(f"{'would redrive' if arguments.dry_run else 'redriven:'} {total:,} events", flush=True)
