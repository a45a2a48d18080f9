"""`quiesce inbox status`: how many marks, whose, how old, how large."""

import argparse
from dataclasses import asdict
from typing import Any

from quiesce.cli.outbox_flags import add_dsn, add_json, dsn, run
from quiesce.cli.outbox_table import print_json, print_table
from quiesce.lifecycle.report import ExitCode


def add_to(topics: Any) -> None:
    parser = topics.add_parser(
        "status",
        help="how many marks, whose, how old",
        description="Tells how the inbox stands. It locks nothing. Beyond 100,000 marks a number is estimated, and "
        "says so.",
    )
    add_dsn(parser)
    add_json(parser)
    parser.set_defaults(run=run_status)


def run_status(arguments: argparse.Namespace) -> int:
    return run(_status(dsn(arguments), arguments.json))


async def _status(where: str, as_json: bool) -> int:
    from quiesce.inbox.retention import age
    from quiesce.inbox.schema_steps import INBOX
    from quiesce.postgres.inbox_status import inbox_status
    from quiesce.postgres.operating import operating

    async with operating(where, tables=INBOX) as connection:
        now = await inbox_status(connection)
    if as_json:
        print_json(
            {
                "at": now.at,
                "version": now.version,
                "entries": asdict(now.entries),
                "oldest_seconds": now.oldest,
                "bytes": now.bytes,
                "consumers": {name: asdict(count) for name, count in now.consumers},
            }
        )
        return ExitCode.CLEAN
    since = "" if now.oldest is None else f", the oldest {age(round(now.oldest))} ago"
    print(f"marks     {now.entries}{since}")
    print(f"size      {now.bytes:,} bytes, with indexes")
    if now.consumers:
        print()
        print_table(("consumer", "marks"), now.consumers)
    return ExitCode.CLEAN
