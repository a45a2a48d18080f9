"""`quiesce outbox schema show|apply`."""

import argparse
import asyncio
from typing import Any

from quiesce.cli.flags import add_flag
from quiesce.errors import SettingsError


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser("outbox", help="look after the outbox", description="Looks after the outbox.")
    topics = parser.add_subparsers(title="topics", required=True, metavar="TOPIC")
    schema = topics.add_parser(
        "schema",
        help="the outbox's tables",
        description="Shows or applies the SQL of the outbox's tables. Applying twice, or from two places at once, "
        "is safe.",
    )
    acts = schema.add_subparsers(title="acts", required=True, metavar="ACT")
    show = acts.add_parser("show", help="print the SQL", description="Prints the SQL, for a migration tool of yours.")
    show.set_defaults(run=run_show)
    apply = acts.add_parser("apply", help="apply what is missing", description="Applies what is missing.")
    add_flag(apply, "--dsn", default=None, help="the database, such as postgresql://user@host/database")
    apply.set_defaults(run=run_apply)


def run_show(arguments: argparse.Namespace) -> int:
    from quiesce.postgres import schema

    print(schema.show())
    return 0


def run_apply(arguments: argparse.Namespace) -> int:
    if not arguments.dsn:
        raise SettingsError("--dsn: not set, takes a PostgreSQL URL; or set QUIESCE_DSN")
    return asyncio.run(_apply(arguments.dsn))


async def _apply(dsn: str) -> int:
    from quiesce.postgres import connect, schema

    async with connect(dsn) as connection:
        before = await schema.applied_version(connection)
        after = await schema.apply(connection)
    print(f"outbox schema: version {after}" + (", already there" if before == after else f", was {before}"))
    return 0
